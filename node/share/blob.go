package share

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

// The state blob; node/DESIGN.md has its bytes. Newer versions may lengthen entries and add
// sections, which this one skips, without a new version number.
const (
	version     = 1
	MaxBlob     = 256 << 10 // bytes; gossip's limit
	maxSections = 16

	sectionClaims  = 1
	sectionTraffic = 2 // one section per pool of backends
	sectionWork    = 3 // of popular prefixes
	SectionHealth  = 4 // see health.AppendReports
	SectionDoctor  = 5 // see doctor.Doctor.Section
)

// A layout is a section's format: a byte with the size of its entries, a head, the entries. Entries
// beyond most are ignored.
type layout struct {
	head, entry, most int // bytes; least bytes that Parse takes, which are those of the first release; entries
}

var layouts = [...]layout{
	sectionClaims:  {0, 12, 16_384},
	sectionTraffic: {16, 3, 64}, // entries of 3 bytes, of a histogram, are of older nodes; see prefixEntry
	sectionWork:    {0, 26, 1024},
}

// prefixEntry is how many bytes of sectionTraffic count a prefix. Shorter entries are ignored.
const prefixEntry = 11

// Limits on one node's claims, so that a faulty node cannot outweigh the rest.
const (
	maxWeight       = prefixtree.MaxEvidence // a rate's weight is seconds of prefill, at most 30
	maxLRUDistance  = 1e9                    // blocks
	maxRate         = 1e7                    // tokens/s
	maxPrefixSeen   = 2048                   // a node's requests that count for popular prefixes
	maxTraffic      = 1e6                    // requests or prefill seconds, per second
	maxTrafficWhole = 3600.                  // seconds of a mean prefill
	maxWork         = 1e6                    // prefill seconds or requests per second, or concurrent requests
	maxDepth        = 1e8                    // tokens of a prefix
)

// ErrState is wrapped by every error about a malformed blob.
var ErrState = errors.New("malformed state")

// State is a decoded state blob, within this package's limits. Receivers may share it, so it must
// not change once received.
type State struct {
	Claims     []Claim // sorted by key, which are distinct
	Popularity Popularity
	Health     []byte // the section in the blob's memory; nil: absent
	Doctor     []byte // likewise
}

// Claim is what one node measured of one engine in its own requests.
type Claim struct {
	Key         uint32  // of the engine's name
	LRUDistance Measure // blocks; see prefixtree.Tree.LRUDistance
	Rate        Measure // prefill tokens/s; see policy.Router.OwnRate
}

// Measure is a mean and the weight of its evidence, 0 for none.
type Measure struct{ Mean, Weight float64 }

// near reports whether c is too close to d to be worth sending.
func (c Claim) near(d Claim) bool {
	within := func(a, b, part float64) bool {
		return a == b || math.Abs(a-b) <= part*math.Min(math.Abs(a), math.Abs(b))
	}
	return within(c.LRUDistance.Mean, d.LRUDistance.Mean, 1.0/16) && within(c.LRUDistance.Weight, d.LRUDistance.Weight, 1.0/8) &&
		within(c.Rate.Mean, d.Rate.Mean, 1.0/16) && within(c.Rate.Weight, d.Rate.Weight, 1.0/8)
}

// Parse decodes a state blob. An empty one is that of a node without measurements. Errors wrap
// [ErrState].
func Parse(blob []byte) (*State, error) {
	s := new(State)
	switch {
	case len(blob) > MaxBlob:
		return nil, fmt.Errorf("%w: %d bytes", ErrState, len(blob))
	case len(blob) == 0:
		return s, nil
	case blob[0] != version:
		return nil, fmt.Errorf("%w: version %d, want %d", ErrState, blob[0], version)
	}
	rest := blob[1:]
	for sections := 0; len(rest) > 0; sections++ {
		if sections == maxSections {
			return nil, fmt.Errorf("%w: more than %d sections", ErrState, maxSections)
		}
		kind := rest[0]
		length, n := binary.Uvarint(rest[1:])
		if n <= 0 || length > uint64(len(rest)-1-n) {
			return nil, fmt.Errorf("%w: section %d is cut short", ErrState, kind)
		}
		section := rest[1+n : 1+n+int(length)]
		rest = rest[1+n+int(length):]
		if err := s.read(kind, section); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(s.Claims, func(a, b Claim) int { return cmp.Compare(a.Key, b.Key) })
	s.Claims = slices.CompactFunc(s.Claims, func(a, b Claim) bool { return a.Key == b.Key })
	return s, nil
}

func (s *State) read(kind byte, section []byte) error {
	switch kind {
	case SectionHealth:
		s.Health = section
	case SectionDoctor:
		s.Doctor = section
	}
	if int(kind) >= len(layouts) || layouts[kind].entry == 0 {
		return nil
	}
	l := layouts[kind]
	if len(section) < 1+l.head || int(section[0]) < l.entry || (len(section)-1-l.head)%int(section[0]) != 0 {
		return fmt.Errorf("%w: %d bytes of section %d", ErrState, len(section), kind)
	}
	size, head, entries := int(section[0]), section[1:1+l.head], section[1+l.head:]
	entries = entries[:min(len(entries), l.most*size)]
	switch kind {
	case sectionClaims:
		for e := range slices.Chunk(entries, size) {
			s.Claims = append(s.Claims, Claim{
				Key: binary.LittleEndian.Uint32(e), LRUDistance: measure(e[4:], maxLRUDistance), Rate: measure(e[8:], maxRate),
			})
		}
	case sectionTraffic:
		s.readTraffic(head, entries, size)
	case sectionWork:
		s.readWork(entries, size)
	}
	return nil
}

func measure(b []byte, most float64) Measure {
	return Measure{Mean: value(b, 0, most), Weight: value(b, 1, maxWeight)}
}

func (s *State) readTraffic(head, entries []byte, size int) {
	p := demand.Report{
		Pool: binary.LittleEndian.Uint64(head), Rate: value(head[8:], 0, maxTraffic), Prefill: value(head[8:], 1, maxTraffic),
	}
	if requests := value(head[8:], 2, maxTraffic); requests > 0 {
		p.Whole = p.Rate * min(value(head[8:], 3, math.MaxFloat64)/requests, maxTrafficWhole)
	}
	if slices.ContainsFunc(s.Popularity.Traffic, func(q demand.Report) bool { return q.Pool == p.Pool }) {
		return // counted already
	}
	if size >= prefixEntry {
		p.Prefixes = readPrefixes(entries, size)
	}
	s.Popularity.Traffic = append(s.Popularity.Traffic, p)
}

// readPrefixes returns the counts: the first of all requests, then each prefix once, with no more requests than that.
func readPrefixes(entries []byte, size int) (list []demand.Count) {
	seen := make(map[prefixtree.Hash]bool, len(entries)/size)
	for e := range slices.Chunk(entries, size) {
		c := demand.Count{Anchor: prefixtree.Hash(binary.LittleEndian.Uint64(e)), Requests: value(e[8:], 0, maxPrefixSeen), Left: int(e[10])}
		switch {
		case len(list) == 0 && c.Anchor != 0:
			return nil
		case len(list) == 0:
			c.Left = 1
		case seen[c.Anchor]:
			continue
		default:
			c.Requests = min(c.Requests, list[0].Requests)
		}
		seen[c.Anchor] = true
		list = append(list, c)
	}
	return list
}

func (s *State) readWork(entries []byte, size int) {
	type prefix struct {
		pool   uint64
		anchor prefixtree.Hash
	}
	s.Popularity.Works = nil
	seen := make(map[prefix]bool, len(entries)/size)
	for e := range slices.Chunk(entries, size) {
		k := prefix{binary.LittleEndian.Uint64(e), prefixtree.Hash(binary.LittleEndian.Uint64(e[8:]))}
		if seen[k] {
			continue // counted already
		}
		seen[k] = true
		w := demand.Work{
			Pool: k.pool, Anchor: k.anchor, Tokens: value(e[16:], 0, maxDepth), Requests: value(e[16:], 1, maxWork),
			Prefill: value(e[16:], 2, maxWork), Active: value(e[16:], 3, maxWork),
		}
		w.Fresh = value(e[16:], 4, w.Requests)
		s.Popularity.Works = append(s.Popularity.Works, w)
	}
}

func appendClaims(blob []byte, claims []Claim) []byte {
	l := layouts[sectionClaims]
	claims = claims[:min(len(claims), l.most)]
	section := append(make([]byte, 0, 1+len(claims)*l.entry), byte(l.entry))
	for _, c := range claims {
		section = binary.LittleEndian.AppendUint32(section, c.Key)
		section = appendValues(section, c.LRUDistance.Mean, c.LRUDistance.Weight, c.Rate.Mean, c.Rate.Weight)
	}
	return AppendSection(blob, sectionClaims, section)
}

func appendPopularity(blob []byte, h *Popularity) []byte {
	for i := range h.Traffic {
		p := &h.Traffic[i]
		section := binary.LittleEndian.AppendUint64([]byte{prefixEntry}, p.Pool)
		// The mean prefill is the quotient of the last two. Earlier versions send sums over some thousand requests, and so give
		// the means of this one little weight.
		section = appendValues(section, p.Rate, p.Prefill, p.Rate, p.Whole)
		for _, c := range p.Prefixes {
			section = binary.LittleEndian.AppendUint64(section, uint64(c.Anchor))
			section = append(appendValues(section, c.Requests), byte(min(c.Left, math.MaxUint8)))
		}
		blob = AppendSection(blob, sectionTraffic, section)
	}
	if len(h.Works) == 0 {
		return blob
	}
	section := []byte{byte(layouts[sectionWork].entry)}
	for i := range h.Works {
		w := &h.Works[i]
		section = binary.LittleEndian.AppendUint64(section, w.Pool)
		section = binary.LittleEndian.AppendUint64(section, uint64(w.Anchor))
		section = appendValues(section, w.Tokens, w.Requests, w.Prefill, w.Active, w.Fresh)
	}
	return AppendSection(blob, sectionWork, section)
}

// AppendSection appends a section to a blob.
func AppendSection(blob []byte, kind byte, section []byte) []byte {
	blob = binary.AppendUvarint(append(blob, kind), uint64(len(section)))
	return append(blob, section...)
}

// Values are sent as 16-bit logarithms of constant relative precision.
const (
	smallestLog2   = -16  // of the smallest value
	stepsPerDouble = 1024 // neighbours differ by 0.07 %
)

func appendValues(dst []byte, values ...float64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint16(dst, logCode(v))
	}
	return dst
}

// value returns the value with this index, at most most.
func value(b []byte, index int, most float64) float64 {
	return min(fromLogCode(binary.LittleEndian.Uint16(b[2*index:])), most)
}

// logCode encodes 2^-16 to 2^47, clamped. 0 means none.
func logCode(v float64) uint16 {
	if !(v > 0) { // NaN too
		return 0
	}
	code := math.Round((math.Log2(v) - smallestLog2) * stepsPerDouble)
	return uint16(max(1, min(code+1, math.MaxUint16)))
}

func fromLogCode(code uint16) float64 {
	if code == 0 {
		return 0
	}
	return math.Exp2(float64(code-1)/stepsPerDouble + smallestLog2)
}

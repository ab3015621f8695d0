package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"grapevine/prefixtree"
)

// claim is what one node learned about one engine from its own requests. Weight 0: no evidence.
type claim struct {
	reach, reachWeight float64 // blocks; see prefixtree.Tree.LRUDistance
	rate, rateWeight   float64 // prefill tokens/s; see policy.Router.OwnRate
}

// near reports whether c is too close to d to be worth sending.
func (c claim) near(d claim) bool {
	within := func(a, b, share float64) bool {
		return a == b || math.Abs(a-b) <= share*math.Min(math.Abs(a), math.Abs(b))
	}
	return within(c.reach, d.reach, 1.0/16) && within(c.reachWeight, d.reachWeight, 1.0/8) &&
		within(c.rate, d.rate, 1.0/16) && within(c.rateWeight, d.rateWeight, 1.0/8)
}

// keyedClaim is a claim under the key of the backend's name, as sent.
type keyedClaim struct {
	key uint32
	claim
}

// The state blob; DESIGN.md has its bytes. Newer versions may append fields to entries and add
// sections, which this one skips, without a new version number.
const (
	stateVersion   = 1
	sectionClaims  = 1
	sectionHealth  = 4         // see health.AppendReports
	claimBytes     = 12        // entry size of this version
	maxClaims      = 16_384    // backends in one blob
	maxStateBytes  = 256 << 10 // gossip's limit
	maxStateParts  = 16        // sections
	smallestLog2   = -16       // of the smallest value
	stepsPerDouble = 1024      // neighbours differ by 0.07 %
)

// Limits on one node's claims, so that a faulty node cannot outweigh the rest.
const (
	maxClaimedWeight = prefixtree.MaxEvidence // a rate's weight is seconds of prefill, at most 30
	maxClaimedReach  = 1e9                    // blocks
	maxClaimedRate   = 1e7                    // tokens/s
)

func (c claim) bounded() claim {
	return claim{
		min(c.reach, maxClaimedReach), min(c.reachWeight, maxClaimedWeight), min(c.rate, maxClaimedRate), min(c.rateWeight, maxClaimedWeight),
	}
}

var errState = errors.New("malformed state")

// appendState appends at most maxClaims claims.
func appendState(dst []byte, claims []keyedClaim) []byte {
	claims = claims[:min(len(claims), maxClaims)]
	dst = append(dst, stateVersion, sectionClaims)
	dst = binary.AppendUvarint(dst, uint64(1+len(claims)*claimBytes))
	dst = append(dst, claimBytes)
	for _, c := range claims {
		dst = binary.LittleEndian.AppendUint32(dst, c.key)
		for _, v := range [4]float64{c.reach, c.reachWeight, c.rate, c.rateWeight} {
			dst = binary.LittleEndian.AppendUint16(dst, logCode(v))
		}
	}
	return dst
}

// parseState appends a blob's claims to dst and skips unknown sections.
func parseState(dst []keyedClaim, blob []byte) ([]keyedClaim, error) {
	err := eachSection(blob, func(kind byte, section []byte) (err error) {
		if kind == sectionClaims {
			dst, err = parseClaims(dst, section)
		}
		return err
	})
	return dst, err
}

// eachSection stops at take's first error.
func eachSection(blob []byte, take func(kind byte, section []byte) error) error {
	switch {
	case len(blob) > maxStateBytes:
		return fmt.Errorf("%w: %d bytes", errState, len(blob))
	case len(blob) == 0:
		return nil // a node without claims
	case blob[0] != stateVersion:
		return fmt.Errorf("%w: version %d, want %d", errState, blob[0], stateVersion)
	}
	rest := blob[1:]
	for parts := 0; len(rest) > 0; parts++ {
		if parts == maxStateParts {
			return fmt.Errorf("%w: more than %d sections", errState, maxStateParts)
		}
		kind := rest[0]
		length, n := binary.Uvarint(rest[1:])
		if n <= 0 || length > uint64(len(rest)-1-n) {
			return fmt.Errorf("%w: section %d is cut short", errState, kind)
		}
		section := rest[1+n : 1+n+int(length)]
		rest = rest[1+n+int(length):]
		if err := take(kind, section); err != nil {
			return err
		}
	}
	return nil
}

func appendSection(dst []byte, kind byte, section []byte) []byte {
	dst = binary.AppendUvarint(append(dst, kind), uint64(len(section)))
	return append(dst, section...)
}

// sectionOf expects a blob that parseState accepted; nil if the section is absent.
func sectionOf(blob []byte, wanted byte) (found []byte) {
	_ = eachSection(blob, func(kind byte, section []byte) error {
		if kind == wanted {
			found = section
		}
		return nil
	})
	return found
}

func parseClaims(dst []keyedClaim, section []byte) ([]keyedClaim, error) {
	if len(section) == 0 || section[0] < claimBytes || (len(section)-1)%int(section[0]) != 0 {
		return dst, fmt.Errorf("%w: claims of %d bytes", errState, len(section))
	}
	size := int(section[0])
	section = section[1:]
	if len(section)/size > maxClaims {
		return dst, fmt.Errorf("%w: %d claims", errState, len(section)/size)
	}
	for ; len(section) > 0; section = section[size:] {
		value := func(i int) float64 { return fromLogCode(binary.LittleEndian.Uint16(section[4+2*i:])) }
		dst = append(dst, keyedClaim{binary.LittleEndian.Uint32(section), claim{value(0), value(1), value(2), value(3)}})
	}
	return dst, nil
}

// logCode encodes 2^-16 to 2^47, clamped, at constant relative precision. 0 means none.
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

// evidence holds all peers' claims and reports their weighted means. Safe for concurrent use.
type evidence struct {
	// told receives new means by backend key, in order, under mu.
	told func(key uint32, mean claim)

	mu      sync.Mutex
	origins []originClaims // few, unordered
}

type originClaims struct {
	name   string
	claims map[uint32]claim
}

func newEvidence(told func(key uint32, mean claim)) *evidence {
	return &evidence{told: told}
}

// set replaces an origin's claims, which it keeps; nil removes the origin. It computes means
// afresh: corrections would add up rounding errors over days.
func (e *evidence) set(origin string, claims map[uint32]claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.IndexFunc(e.origins, func(o originClaims) bool { return o.name == origin })
	var before map[uint32]claim
	if at >= 0 {
		before = e.origins[at].claims
		e.origins = slices.Delete(e.origins, at, at+1)
	}
	if claims != nil {
		e.origins = append(e.origins, originClaims{origin, claims})
	}
	for key, c := range claims {
		if before[key] != c {
			e.told(key, e.meanLocked(key))
		}
	}
	for key, c := range before {
		if _, still := claims[key]; !still && c != (claim{}) {
			e.told(key, e.meanLocked(key))
		}
	}
}

func (e *evidence) meanLocked(key uint32) (m claim) {
	for i := range e.origins {
		c := e.origins[i].claims[key]
		m.reach += c.reach * c.reachWeight
		m.reachWeight += c.reachWeight
		m.rate += c.rate * c.rateWeight
		m.rateWeight += c.rateWeight
	}
	if m.reachWeight > 0 {
		m.reach /= m.reachWeight
	}
	if m.rateWeight > 0 {
		m.rate /= m.rateWeight
	}
	return m
}

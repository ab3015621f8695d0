package node

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"grapevine/node/hot"
	"grapevine/prefixtree"
	"grapevine/proxy/policy"
)

// The heat sections of the state blob; DESIGN.md has their bytes. They take at most 4 KiB.
const (
	sectionHeat  = 2    // the hottest anchors
	sectionPace  = 3    // one section per pool of backends
	sectionWork  = 5    // of popular prefixes
	workBytes    = 26   // entry size of this version
	workBytesOld = 24   // without Fresh
	maxWorks     = 1024 // read from one blob
	maxWork      = 1e6  // prefill seconds or requests per second, or concurrent requests
	maxDepth     = 1e8  // tokens of a prefix
	heatAnchors  = 320
	heatPaces    = hot.MaxPools
	anchorBytes  = 10 // entry size of this version
	paceBytes    = 16
	bucketBytes  = 3
	maxAnchors   = 4096  // read from one blob
	maxRequests  = 1e6   // recent, of one node
	maxPaceSeen  = 1e4   // requests behind one pace
	maxPace      = 1e6   // requests or prefill seconds, per second
	maxPaceWhole = 3600. // seconds of a mean prefill
)

func appendHeat(blob []byte, h *policy.Heat) []byte {
	if len(h.Anchors) > 0 {
		blob = append(blob, sectionHeat)
		blob = binary.AppendUvarint(blob, uint64(3+anchorBytes*len(h.Anchors)))
		blob = append(blob, anchorBytes)
		blob = binary.LittleEndian.AppendUint16(blob, logCode(h.Requests))
		for _, a := range h.Anchors {
			blob = binary.LittleEndian.AppendUint64(blob, uint64(a.Hash))
			blob = binary.LittleEndian.AppendUint16(blob, logCode(a.Count))
		}
	}
	for i := range h.Paces {
		p := &h.Paces[i]
		section := binary.LittleEndian.AppendUint64(make([]byte, 0, paceBytes+bucketBytes*policy.PaceBuckets), p.Pool)
		for _, v := range [4]float64{p.Rate, p.Demand, p.Requests, p.Work} {
			section = binary.LittleEndian.AppendUint16(section, logCode(v))
		}
		for at, n := range p.Soonest {
			if n > 0 {
				section = binary.LittleEndian.AppendUint16(append(section, byte(at)), logCode(n))
			}
		}
		blob = append(blob, sectionPace)
		blob = binary.AppendUvarint(blob, uint64(len(section)))
		blob = append(blob, section...)
	}
	if len(h.Works) == 0 {
		return blob
	}
	section := append(make([]byte, 0, 1+workBytes*len(h.Works)), workBytes)
	for i := range h.Works {
		w := &h.Works[i]
		section = binary.LittleEndian.AppendUint64(section, w.Pool)
		section = binary.LittleEndian.AppendUint64(section, uint64(w.Anchor))
		for _, v := range [5]float64{w.Tokens, w.Requests, w.Prefill, w.Active, w.Fresh} {
			section = binary.LittleEndian.AppendUint16(section, logCode(v))
		}
	}
	return appendSection(blob, sectionWork, section)
}

// parseHeat clamps values to the bounds above.
func parseHeat(blob []byte) (h policy.Heat, err error) {
	err = eachSection(blob, func(kind byte, section []byte) error {
		switch kind {
		case sectionHeat:
			return parseAnchors(&h, section)
		case sectionPace:
			return parsePace(&h, section)
		case sectionWork:
			return parseWorks(&h, section)
		}
		return nil
	})
	return h, err
}

func parseAnchors(h *policy.Heat, section []byte) error {
	if len(section) < 3 || section[0] < anchorBytes || (len(section)-3)%int(section[0]) != 0 {
		return fmt.Errorf("%w: heat of %d bytes", errState, len(section))
	}
	size := int(section[0])
	h.Requests = min(fromLogCode(binary.LittleEndian.Uint16(section[1:])), maxRequests)
	h.Anchors = h.Anchors[:0]
	for section = section[3:]; len(section) > 0 && len(h.Anchors) < maxAnchors; section = section[size:] {
		h.Anchors = append(h.Anchors, policy.HotAnchor{
			Hash:  prefixtree.Hash(binary.LittleEndian.Uint64(section)),
			Count: min(fromLogCode(binary.LittleEndian.Uint16(section[8:])), h.Requests),
		})
	}
	return nil
}

func parseWorks(h *policy.Heat, section []byte) error {
	if len(section) < 1 || section[0] < workBytesOld || (len(section)-1)%int(section[0]) != 0 {
		return fmt.Errorf("%w: work of %d bytes", errState, len(section))
	}
	size := int(section[0])
	h.Works = h.Works[:0]
	seen := make(map[hot.Key]bool, min(len(section)/size, maxWorks))
	for section = section[1:]; len(section) > 0 && len(h.Works) < maxWorks; section = section[size:] {
		value := func(at int) float64 { return fromLogCode(binary.LittleEndian.Uint16(section[at:])) }
		w := policy.Work{
			Pool: binary.LittleEndian.Uint64(section), Anchor: prefixtree.Hash(binary.LittleEndian.Uint64(section[8:])),
			Tokens: min(value(16), maxDepth), Requests: min(value(18), maxWork), Prefill: min(value(20), maxWork), Active: min(value(22), maxWork),
		}
		k := hot.Key{Pool: w.Pool, Anchor: w.Anchor}
		if seen[k] {
			continue // counted already
		}
		seen[k] = true
		w.Fresh = w.Requests // the sender omits Fresh
		if size >= workBytes {
			w.Fresh = min(value(24), w.Requests)
		}
		h.Works = append(h.Works, w)
	}
	return nil
}

func parsePace(h *policy.Heat, section []byte) error {
	if len(section) < paceBytes || (len(section)-paceBytes)%bucketBytes != 0 {
		return fmt.Errorf("%w: a pace of %d bytes", errState, len(section))
	}
	value := func(at int) float64 { return fromLogCode(binary.LittleEndian.Uint16(section[at:])) }
	p := policy.Pace{
		Pool: binary.LittleEndian.Uint64(section), Rate: min(value(8), maxPace), Demand: min(value(10), maxPace), Requests: min(value(12), maxPaceSeen),
	}
	p.Work = min(value(14), p.Requests*maxPaceWhole)
	rest := p.Requests
	for at := paceBytes; at < len(section); at += bucketBytes {
		bucket := int(section[at])
		if bucket >= policy.PaceBuckets {
			return fmt.Errorf("%w: bucket %d of a pace", errState, bucket)
		}
		n := min(value(at+1), rest)
		p.Soonest[bucket] += n
		rest -= n
	}
	h.Paces = append(h.Paces, p)
	return nil
}

// heatTold is the last heat sent. Unchanged blobs are not sent again, so it stays until a sixteenth
// more requests came, but not beyond heatKept, since rates fade.
type heatTold struct {
	blob     []byte
	picks    uint64
	requests float64
	at       prefixtree.Time
}

const heatKept = prefixtree.Time(time.Minute / time.Millisecond)

func (t *heatTold) tell(blob []byte, r *policy.Router, now prefixtree.Time) []byte {
	picks := r.Stats().Picks
	if t.at == 0 || float64(picks-t.picks) > t.requests/16 || now-t.at >= heatKept || now < t.at {
		h := r.OwnHeat(heatAnchors, heatPaces, now)
		t.blob, t.picks, t.requests, t.at = appendHeat(t.blob[:0], &h), picks, h.Requests, now
	}
	return append(blob, t.blob...)
}

// heatBoard holds peers' latest heat. Safe for concurrent use.
type heatBoard struct {
	mu      sync.Mutex
	heats   map[string]policy.Heat // by origin
	changed bool
}

// set replaces an origin's heat; nil removes it.
func (b *heatBoard) set(origin string, h *policy.Heat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h == nil {
		if _, ok := b.heats[origin]; !ok {
			return
		}
		delete(b.heats, origin)
	} else {
		if b.heats == nil {
			b.heats = map[string]policy.Heat{}
		}
		b.heats[origin] = *h
	}
	b.changed = true
}

func (b *heatBoard) works(sum hot.Sum) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.heats {
		sum.Add(h.Works)
	}
}

// hand gives the router the sum if it changed. It sums afresh, without old rounding errors.
func (b *heatBoard) hand(r *policy.Router) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.changed {
		return
	}
	b.changed = false
	if len(b.heats) == 0 {
		r.SetPeerHeat(nil, nil)
		return
	}
	sum := new(policy.HeatSum)
	for _, h := range b.heats {
		sum.Add(&h)
	}
	r.SetPeerHeat(sum, nil)
}

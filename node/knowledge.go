package node

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/node/doctor"
	"grapevine.example/node/health"
	"grapevine.example/node/history"
	"grapevine.example/node/share"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// knowledge implements gossip.Knowledge: it gives share the time, adds the health of engines and the doctor's diagnoses to the
// state blob, and gives the meter of clients' limits, the history and the doctor what peers report.
type knowledge struct {
	shared  *share.Knowledge
	router  *policy.Router
	health  *health.Checker
	meter   *clients.Meter
	uses    []clients.Use // scratch of Usage
	history *history.History
	doctor  *doctor.Doctor
	figures func([]gossip.Figure) []gossip.Figure // appends this node's
	waiting waiting                               // the proxy, which is built later; nil until then

	claims    []queue.Claim // scratch of Claims, and what it returned last
	claimed   []byte
	nextClaim time.Time

	before    atomic.Pointer[[]gossip.Load] // of the process that this one replaces; nil: none
	poke      func()                        // called when nodes changes; set before gossip starts; may be nil
	turns     atomic.Uint64                 // calls of Loads, one per turn of gossip's loop
	nodes     atomic.Int64                  // alive, including this one
	staleness atomic.Int64                  // of peers' actions, ns
	malformed atomic.Uint64                 // states and claims
}

// waiting is the queue of the proxy.
type waiting interface {
	Claims(dst []queue.Claim) []queue.Claim
	PeerClaims(origin string, claims []queue.Claim)
}

var _ gossip.Knowledge = (*knowledge)(nil)

func newKnowledge(shared *share.Knowledge, router *policy.Router, c *health.Checker, m *clients.Meter, h *history.History, d *doctor.Doctor) *knowledge {
	k := &knowledge{shared: shared, router: router, health: c, meter: m, history: h, doctor: d, figures: func(dst []gossip.Figure) []gossip.Figure { return dst }}
	k.nodes.Store(1)
	return k
}

func (k *knowledge) Drain(dst []byte, limit int) (payload []byte, records int) {
	return k.shared.Drain(dst, limit)
}

func (k *knowledge) Apply(_ string, payload []byte, shift time.Duration) (gossip.Applied, error) {
	return k.ApplySnapshot(payload, shift)
}

func (k *knowledge) Snapshot(limit int, yield func(page []byte, records int) bool) {
	k.shared.Snapshot(limit, now(), yield)
}

func (k *knowledge) SnapshotSize() int { return k.shared.SnapshotSize(now()) }

func (k *knowledge) ApplySnapshot(page []byte, shift time.Duration) (gossip.Applied, error) {
	applied, err := k.shared.Apply(page, shift, now())
	return gossip.Applied{Records: applied.Records, News: applied.News, Unknown: applied.Unknown}, err
}

// Loads includes what the process still runs that this one replaces.
func (k *knowledge) Loads(dst []gossip.Load) []gossip.Load {
	dst = k.shared.Loads(dst, now())
	if before := k.before.Load(); before != nil {
		dst = addLoads(dst, *before)
	}
	k.turns.Add(1)
	return dst
}

// addLoads adds loads of few engines.
func addLoads(dst, more []gossip.Load) []gossip.Load {
	for _, l := range more {
		i := slices.IndexFunc(dst, func(d gossip.Load) bool { return d.Backend == l.Backend })
		if i < 0 {
			dst = append(dst, l)
			continue
		}
		dst[i].PrefillTokens += l.PrefillTokens
		dst[i].Active += l.Active
	}
	return dst
}

// PeerLoad comes after PeerUsage, if the peer has any usage.
func (k *knowledge) PeerLoad(origin string, changed []gossip.Load, full bool) {
	if full {
		k.meter.PeerReturned(origin)
	}
	k.shared.PeerLoad(origin, changed, full, now())
}

// Usage is called by one goroutine.
func (k *knowledge) Usage(dst []gossip.Usage) []gossip.Usage {
	k.uses = k.meter.Own(k.uses[:0], k.meter.Now())
	for _, u := range k.uses {
		dst = append(dst, gossip.Usage(u))
	}
	return dst
}

func (k *knowledge) PeerUsage(origin string, incarnation uint64, changed []gossip.Usage, full bool) {
	uses := make([]clients.Use, len(changed))
	for i, u := range changed {
		uses[i] = clients.Use(u)
	}
	k.meter.Peer(origin, incarnation, uses, full, k.meter.Now())
}

func (k *knowledge) Figures(dst []gossip.Figure) []gossip.Figure { return k.figures(dst) }

func (k *knowledge) PeerFigures(origin string, incarnation uint64, at int64, changed []gossip.Figure, full bool) {
	k.history.Peer(origin, incarnation, at, changed, full)
}

// perClaimByte spreads the claims of many clients: at most 20 kB/s to each peer.
const perClaimByte = 50 * time.Microsecond

// Claims is called by one goroutine.
func (k *knowledge) Claims(dst []byte) []byte {
	if k.waiting == nil {
		return dst
	}
	if at := time.Now(); !at.Before(k.nextClaim) {
		k.claims = k.waiting.Claims(k.claims[:0])
		k.claimed = queue.AppendClaims(k.claimed[:0], k.claims)
		k.nextClaim = at.Add(time.Duration(len(k.claimed)) * perClaimByte)
	}
	return append(dst, k.claimed...)
}

// PeerClaims keeps the peer's previous claims if these are malformed.
func (k *knowledge) PeerClaims(origin string, b []byte) {
	if k.waiting == nil {
		return
	}
	claims, err := queue.ParseClaims(b)
	if err != nil {
		k.malformed.Add(1)
		return
	}
	k.waiting.PeerClaims(origin, claims)
}

func (k *knowledge) DropPeer(origin string, left bool) {
	if k.waiting != nil {
		k.waiting.PeerClaims(origin, nil)
	}
	k.history.DropPeer(origin)
	k.meter.DropPeer(origin, left, k.meter.Now())
	k.shared.DropPeer(origin)
	k.health.DropPeer(origin)
	k.doctor.DropPeer(origin)
}

func (k *knowledge) State(dst []byte) []byte {
	dst = laterSections(k.shared.State(dst, now()))
	if reports := k.health.Reports(); reports != nil {
		dst = share.AppendSection(dst, share.SectionHealth, reports)
	}
	const head = 8 // bytes of a section before its content, at most
	if report := k.doctor.Section(time.Now()); report != nil && len(dst)+head+len(report) <= share.MaxBlob {
		dst = share.AppendSection(dst, share.SectionDoctor, report)
	}
	return dst
}

// PeerState keeps the peer's previous state if the blob is malformed.
func (k *knowledge) PeerState(origin string, blob []byte) {
	state, err := share.Parse(blob)
	if err == nil {
		reports, report := state.Health, state.Doctor
		state.Health, state.Doctor = nil, nil // gossip's memory
		k.shared.PeerState(origin, state)
		err = errors.Join(k.health.Received(origin, reports), k.doctor.Received(origin, report))
	}
	if err != nil {
		k.malformed.Add(1)
	}
}

func (k *knowledge) Fleet(nodes int, staleness time.Duration) {
	if k.nodes.Swap(int64(nodes)) != int64(nodes) && k.poke != nil {
		k.poke()
	}
	k.staleness.Store(int64(staleness))
	k.router.SetFleet(nodes, staleness)
}

package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

const recordSize = 16

// model is a minimal Knowledge: facts merged by maximum time.
type model struct {
	name string

	mu       sync.Mutex
	facts    map[uint64]uint64
	sum      uint64 // XOR over facts, to compare models cheaply
	outbox   []byte
	batches  map[batchKey]int
	loads    map[uint32]Load
	peers    map[string]map[uint32]Load
	uses     []Usage
	used     map[string]peerUses
	figures  []Figure
	figured  map[string]map[uint32]Figure
	claims   string
	claimed  map[string]string
	states   map[string]string
	state    string
	dropped  map[string]int
	left     map[string]bool // as DropPeer said last
	nodes    int
	stale    time.Duration
	shifts   []time.Duration
	pages    int
	pageHook func(page int) bool
	loadHook func(origin string)
	applied  func(origin string, payload []byte)
	refuse   func(payload []byte) bool
}

type peerUses struct {
	incarnation uint64
	uses        map[uint32]Usage
}

type batchKey struct {
	origin  string
	content uint64
}

var payloadSeed = maphash.MakeSeed()

func newModel(name string) *model {
	return &model{
		name: name, facts: map[uint64]uint64{}, batches: map[batchKey]int{}, loads: map[uint32]Load{},
		peers: map[string]map[uint32]Load{}, states: map[string]string{}, dropped: map[string]int{}, left: map[string]bool{},
	}
}

func (m *model) learn(key, at uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mergeLocked(key, at)
	m.outbox = binary.LittleEndian.AppendUint64(m.outbox, key)
	m.outbox = binary.LittleEndian.AppendUint64(m.outbox, at)
}

func (m *model) mergeLocked(key, at uint64) bool {
	old, ok := m.facts[key]
	if ok && old >= at {
		return false
	}
	if ok {
		m.sum ^= scramble(key ^ scramble(old))
	}
	m.sum ^= scramble(key ^ scramble(at))
	m.facts[key] = at
	return true
}

func (m *model) knows(key uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.facts[key]
	return ok
}

func (m *model) digest() (count int, sum uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.facts), m.sum
}

func (m *model) copyFacts() map[uint64]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.facts)
}

func (m *model) Drain(dst []byte, limit int) ([]byte, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(m.outbox), limit) / recordSize
	dst = append(dst, m.outbox[:n*recordSize]...)
	m.outbox = m.outbox[n*recordSize:]
	if len(m.outbox) == 0 {
		m.outbox = nil
	}
	return dst, n
}

var errModel = errors.New("model: malformed")

func (m *model) Apply(origin string, payload []byte, shift time.Duration) (Applied, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(payload)%recordSize != 0 || m.refuse != nil && m.refuse(payload) {
		return Applied{}, errModel
	}
	m.batches[batchKey{origin, maphash.Bytes(payloadSeed, payload)}]++
	if m.applied != nil {
		m.applied(origin, payload)
	}
	m.shifts = append(m.shifts, shift)
	return m.mergeAllLocked(payload), nil
}

func (m *model) mergeAllLocked(b []byte) (a Applied) {
	for ; len(b) >= recordSize; b = b[recordSize:] {
		a.Records++
		if m.mergeLocked(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])) {
			a.News++
		}
	}
	return a
}

func (m *model) Snapshot(limit int, yield func(page []byte, records int) bool) {
	facts := m.copyFacts()
	keys := slices.SortedFunc(maps.Keys(facts), func(a, b uint64) int { return int(int64(facts[b]) - int64(facts[a])) })
	per := limit / recordSize
	for n := 0; len(keys) > 0; n++ {
		if m.pageHook != nil && !m.pageHook(n) {
			return
		}
		var page []byte
		k := min(per, len(keys))
		for _, key := range keys[:k] {
			page = binary.LittleEndian.AppendUint64(page, key)
			page = binary.LittleEndian.AppendUint64(page, facts[key])
		}
		if !yield(page, k) {
			return
		}
		keys = keys[k:]
	}
}

func (m *model) SnapshotSize() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.facts)
}

func (m *model) ApplySnapshot(page []byte, _ time.Duration) (Applied, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(page)%recordSize != 0 {
		return Applied{}, errModel
	}
	m.pages++
	return m.mergeAllLocked(page), nil
}

func (m *model) Loads(dst []Load) []Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.loads {
		dst = append(dst, l)
	}
	return dst
}

func (m *model) setLoad(backend, tokens, active uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tokens|active == 0 {
		delete(m.loads, backend)
		return
	}
	m.loads[backend] = load(backend, tokens, active)
}

func (m *model) PeerLoad(origin string, changed []Load, full bool) {
	if m.loadHook != nil {
		m.loadHook(origin)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.peers[origin]
	if full || v == nil {
		if !full {
			panic("sparse load before the full vector of " + origin)
		}
		v = map[uint32]Load{}
		m.peers[origin] = v
	}
	for _, l := range changed {
		if l.PrefillTokens|l.Active == 0 {
			delete(v, l.Backend)
		} else {
			v[l.Backend] = l
		}
	}
}

func (m *model) Usage(dst []Usage) []Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(dst, m.uses...)
}

func (m *model) setUsage(uses ...Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uses = uses
}

func (m *model) Figures(dst []Figure) []Figure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(dst, m.figures...)
}

func (m *model) PeerFigures(origin string, _ uint64, _ int64, changed []Figure, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.figured[origin]
	if full {
		v = map[uint32]Figure{}
	} else if v == nil {
		panic("sparse figures before the full vector of " + origin)
	}
	for _, f := range changed {
		v[f.Key] = f
	}
	if m.figured == nil {
		m.figured = map[string]map[uint32]Figure{}
	}
	m.figured[origin] = v
}

func (m *model) Claims(dst []byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(dst, m.claims...)
}

func (m *model) PeerClaims(origin string, claims []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claimed == nil {
		m.claimed = map[string]string{}
	}
	m.claimed[origin] = string(claims)
}

func (m *model) PeerUsage(origin string, incarnation uint64, changed []Usage, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, known := m.used[origin]
	if !full && !known {
		panic("sparse usage before the full vector of " + origin)
	}
	if full {
		v = peerUses{incarnation, map[uint32]Usage{}}
	}
	for _, u := range changed {
		if v.uses[u.Client] = u; u.Tokens|u.InFlight == 0 {
			delete(v.uses, u.Client)
		}
	}
	if m.used == nil {
		m.used = map[string]peerUses{}
	}
	m.used[origin] = v
}

func (m *model) peerUsage(origin string) peerUses {
	m.mu.Lock()
	defer m.mu.Unlock()
	return peerUses{m.used[origin].incarnation, maps.Clone(m.used[origin].uses)}
}

func (m *model) peerLoad(origin string) map[uint32]Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.peers[origin])
}

func (m *model) DropPeer(origin string, left bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left[origin] = left
	delete(m.peers, origin)
	delete(m.states, origin)
	delete(m.used, origin)
	delete(m.figured, origin)
	delete(m.claimed, origin)
	m.dropped[origin]++
}

func (m *model) State(dst []byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(dst, m.state...)
}

func (m *model) PeerState(origin string, state []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states[origin] = string(state)
}

func (m *model) Fleet(nodes int, staleness time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes, m.stale = nodes, staleness
}

func (m *model) fleet() (int, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes, m.stale
}

func (m *model) appliedTwice() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for b, n := range m.batches {
		if n > 1 {
			return fmt.Sprintf("%d times a batch of %s", n, b.origin)
		}
	}
	return ""
}

func until(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

func allKnow(nodes []*testNode) bool {
	count, sum := nodes[0].know.digest()
	for _, n := range nodes[1:] {
		if c, s := n.know.digest(); c != count || s != sum {
			return false
		}
	}
	return true
}

func positionsAgree(nodes []*testNode) bool {
	for _, n := range nodes {
		for _, o := range nodes {
			if n == o {
				continue
			}
			p := n.peer(o.name)
			if p == nil {
				return false
			}
			p.mu.Lock()
			c := p.cursor
			p.mu.Unlock()
			if c.incarnation != o.self.incarnation || c.next != o.Position() || c.missing != 0 {
				return false
			}
		}
	}
	return true
}

func load(backend, tokens, active uint32) Load {
	return Load{Backend: backend, PrefillTokens: tokens, Active: active}
}

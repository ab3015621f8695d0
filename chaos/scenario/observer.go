package scenario

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
)

const (
	readyEvery   = 50 * time.Millisecond
	viewEvery    = 150 * time.Millisecond
	metricsEvery = 2 * time.Second
	askWithin    = 2 * time.Second
)

// An answer was true at some moment of its span.
type span struct{ asked, answered time.Duration }

type sighting[T any] struct {
	what  T
	first span
	last  span
}

type track[T comparable] struct{ list []sighting[T] }

func (t *track[T]) note(s span, what T) {
	if n := len(t.list); n > 0 && t.list[n-1].what == what {
		t.list[n-1].last = s
		return
	}
	t.list = append(t.list, sighting[T]{what, s, s})
}

type readiness struct {
	ready bool
	pid   int
}

type leadership struct {
	id, leader, role string
	term             uint64
}

type resources struct {
	at     time.Duration
	pid    int
	used   [len(measures)]float64
	waited float64 // requests that have waited in the process's queue
}

type seen struct {
	ready    track[readiness]
	raft     track[leadership]
	backends map[string]*track[string] // engine -> state; "absent" if the node does not list it
	caches   map[string]*track[string] // engine -> how the node, which follows its cache events, knows its cache
	usage    []resources
	first    map[int]meeting
}

type meeting struct {
	ready    span
	status   string
	warm     float64
	backends int
	version  bool
	err      string
}

// observer polls all nodes. Safe for concurrent use.
type observer struct {
	f       *fleet.Fleet
	l       *ledger
	engines []string
	work    sync.WaitGroup

	mu   sync.Mutex
	seen map[string]*seen
}

func newObserver(f *fleet.Fleet, l *ledger) *observer {
	o := &observer{f: f, l: l, engines: f.EngineNames(), seen: make(map[string]*seen)}
	for _, n := range f.Nodes() {
		s := &seen{backends: make(map[string]*track[string]), caches: make(map[string]*track[string]), first: make(map[int]meeting)}
		for _, e := range o.engines {
			s.backends[e], s.caches[e] = new(track[string]), new(track[string])
		}
		o.seen[n.Name()] = s
	}
	return o
}

func (o *observer) play(ctx context.Context) {
	for _, n := range o.f.Nodes() {
		for every, ask := range map[time.Duration]func(context.Context, *fleet.Node){readyEvery: o.askReady, viewEvery: o.askView, metricsEvery: o.askMetrics} {
			o.work.Go(func() {
				for ; ; _ = sleep(ctx, every) {
					if ctx.Err() != nil {
						return
					}
					if n.Running() {
						limited, cancel := context.WithTimeout(ctx, askWithin)
						ask(limited, n)
						cancel()
					}
				}
			})
		}
	}
	o.work.Wait()
}

func (o *observer) askReady(ctx context.Context, n *fleet.Node) {
	pid, asked := n.PID(), o.l.now()
	err := n.Ready(ctx)
	s := span{asked, o.l.now()}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	r := readiness{err == nil, pid}
	if n.PID() != pid {
		return
	}
	o.mu.Lock()
	mine := o.seen[n.Name()]
	mine.ready.note(s, r)
	_, met := mine.first[pid]
	o.mu.Unlock()
	if r.ready && !met {
		o.meet(ctx, n, pid, s)
	}
}

func (o *observer) meet(ctx context.Context, n *fleet.Node, pid int, ready span) {
	m := meeting{ready: ready}
	st, err := n.Status(ctx)
	switch {
	case err != nil:
		m.err = err.Error()
	default:
		m.backends, m.status, m.warm = st.Backends, st.NotReady, 1
		if st.Fleet != nil {
			m.warm = st.Fleet.WarmFraction
		}
		if raft, err := n.Raft(ctx); err == nil {
			m.version = raft.Version > 0
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n.PID() == pid {
		o.seen[n.Name()].first[pid] = m
	}
}

const absent = "absent"

func (o *observer) askView(ctx context.Context, n *fleet.Node) {
	asked := o.l.now()
	if list, err := n.Backends(ctx); err == nil {
		states, caches := make(map[string]string), make(map[string]string)
		for _, b := range list.Backends {
			states[b.Name] = b.State
			if slices.Contains(b.Cache.Followers, n.Name()) {
				caches[b.Name] = b.Cache.Known
			}
		}
		s := span{asked, o.l.now()}
		o.mu.Lock()
		for _, e := range o.engines {
			o.seen[n.Name()].backends[e].note(s, cmp.Or(states[e], absent))
			o.seen[n.Name()].caches[e].note(s, cmp.Or(caches[e], absent))
		}
		o.mu.Unlock()
	}
	asked = o.l.now()
	if st, err := n.Raft(ctx); err == nil {
		o.mu.Lock()
		o.seen[n.Name()].raft.note(span{asked, o.l.now()}, leadership{st.ID, st.Leader, st.Role, st.Term})
		o.mu.Unlock()
	}
}

func (o *observer) askMetrics(ctx context.Context, n *fleet.Node) {
	if r, err := usageOf(ctx, n, o.l); err == nil {
		o.mu.Lock()
		o.seen[n.Name()].usage = append(o.seen[n.Name()].usage, r)
		o.mu.Unlock()
	}
}

func usageOf(ctx context.Context, n *fleet.Node, l *ledger) (r resources, err error) {
	r.pid, r.at = n.PID(), l.now()
	m, err := n.Metrics(ctx)
	if err != nil {
		return r, err
	}
	r.waited = m["grapevine_queue_wait_seconds_count"] // there is none before the first
	for i, use := range measures {
		if r.used[i], err = m.Get(use.metric); err != nil {
			return r, err
		}
	}
	clients, err := m.Get("grapevine_connections") // each has a goroutine and a descriptor, and more come while another router is away
	if err != nil {
		return r, err
	}
	r.used[goroutines] -= clients
	r.used[files] -= clients
	r.used[heap] /= 2 // the next collection is due when the live heap has doubled (GOGC=100)
	for _, name := range []string{"grapevine_tree_bytes", "grapevine_gossip_journal_bytes"} {
		known, err := m.Get(name)
		if err != nil {
			return r, err
		}
		r.used[heap] -= known
		r.used[resident] -= 2 * known
	}
	return r, nil
}

package scenario

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/node/admin"
	"grapevine.example/prefixtree"
)

type quiet struct {
	zero    time.Duration // when all counts were zero, or the wait ended
	counted int
	left    []Violation // without a time

	converged time.Duration
	applied   time.Duration // when each node had last applied all its peers' batches, or the wait ended
	facts     uint64
	least     uint64
	most      uint64
	compared  int
	differ    string // how live facts differ; "" if they agree
	engines   map[string]string
	streams   int
	behind    string // which batches one node has not applied; "" if none

	after map[string]resources
}

// hush waits for quiet after the last request and records the result.
func hush(ctx context.Context, f *fleet.Fleet, l *ledger) quiet {
	q := quiet{after: make(map[string]resources)}
	began := time.Now()
	var counting sync.WaitGroup
	counting.Go(func() {
		until(ctx, func() bool {
			q.left, q.counted = remaining(ctx, f)
			q.zero = time.Since(began)
			return len(q.left) == 0 || q.zero > countsBound
		})
	})
	until(ctx, func() bool {
		before := q.behind
		q.compare(ctx, f)
		if q.converged = time.Since(began); q.behind != "" || before != "" || q.applied == 0 {
			q.applied = q.converged
		}
		return q.differ == "" && q.behind == "" || q.converged > convergeLook
	})
	counting.Wait()
	q.settle(ctx, f, l, began)
	return q
}

func until(ctx context.Context, ok func() bool) {
	for !ok() && sleep(ctx, 50*time.Millisecond) == nil {
	}
}

func remaining(ctx context.Context, f *fleet.Fleet) (left []Violation, asked int) {
	add := func(place, what string, n int64) {
		asked++
		if n != 0 {
			left = append(left, Violation{0, place, fmt.Sprintf("%d %s", n, what)})
		}
	}
	for _, n := range f.Running() {
		st, err := n.Status(ctx)
		var list *admin.BackendList
		if err == nil {
			list, err = n.Backends(ctx)
		}
		var queue *admin.QueueStatus
		if err == nil {
			queue, err = n.Queue(ctx)
		}
		var clients *admin.ClientList
		if err == nil {
			clients, err = n.Clients(ctx)
		}
		if err != nil {
			left = append(left, Violation{0, n.Name(), err.Error()})
			continue
		}
		add(n.Name(), "requests in flight", int64(st.InFlight))
		if queue.On {
			add(n.Name(), "requests in the queue", int64(queue.Requests))
		}
		for _, c := range clients.Clients {
			add(n.Name(), "requests of all nodes for "+c.Name, int64(c.Requests))
		}
		for _, b := range list.Backends {
			add(n.Name(), "of its requests at "+b.Name, b.Active)
			add(n.Name(), "requests of all nodes at "+b.Name, b.FleetActive)
			add(n.Name(), "prompt tokens outstanding at "+b.Name, b.PrefillTokens)
		}
	}
	for _, e := range f.Engines() {
		if s := e.Server(); s != nil {
			st := s.Stats()
			add(e.Name(), "running", int64(st.Running))
			add(e.Name(), "waiting", int64(st.Waiting))
		}
	}
	return left, asked
}

// convergeLook is how long differing trees are watched to distinguish delay from loss.
const convergeLook = 3 * convergeBound

// compare compares the running nodes' applied batches and live facts.
func (q *quiet) compare(ctx context.Context, f *fleet.Fleet) {
	q.differ, q.behind, q.compared, q.streams, q.engines = "", "", 0, 0, make(map[string]string)
	var nodes []known
	for _, n := range f.Running() {
		g, err := n.GossipFacts(ctx)
		if err != nil {
			q.behind = err.Error()
			continue
		}
		nodes = append(nodes, known{n.Name(), g})
	}
	q.compared = len(nodes)
	for i := range nodes {
		n := &nodes[i]
		for j := range nodes {
			if i != j {
				q.streams++
				q.behind = cmp.Or(q.behind, n.behind(&nodes[j]))
			}
		}
		count := n.Facts.Count
		if i == 0 {
			q.facts, q.least, q.most = count, count, count
		}
		q.least, q.most = min(q.least, count), max(q.most, count)
		q.held(&nodes[0], n, f.EngineNames())
	}
}

type known struct {
	name string
	*admin.GossipStatus
}

func (k *known) behind(publisher *known) string {
	switch p, g := k.Peers[publisher.name], publisher; {
	case p.Process != g.Process:
		return fmt.Sprintf("%s follows process %d of %s, which is now %d", k.name, p.Process, publisher.name, g.Process)
	case p.Incomplete:
		return fmt.Sprintf("%s lacks batches below %d of %s", k.name, p.Position, publisher.name)
	case p.Position < g.Position:
		return fmt.Sprintf("%s has applied the batches of %s below %d, of those below %d", k.name, publisher.name, p.Position, g.Position)
	}
	return ""
}

func (q *quiet) held(a, b *known, engines []string) {
	if b.Facts.Count != a.Facts.Count || b.Facts.XOR != a.Facts.XOR {
		q.differ = fmt.Sprintf("%s holds %d live facts (%s), %s %d (%s)", a.name, a.Facts.Count, a.Facts.XOR, b.name, b.Facts.Count, b.Facts.XOR)
	}
	for _, engine := range engines {
		key := fmt.Sprintf("%08x", prefixtree.BackendKey(engine))
		if x, y := a.Facts.Backends[key], b.Facts.Backends[key]; x != y {
			q.engines[engine] = fmt.Sprintf("of %s %s holds %d live facts (%s), %s %d (%s)", engine, a.name, x.Count, x.XOR, b.name, y.Count, y.XOR)
		}
	}
}

// settle waits until the nodes' resources stop falling and records the least of each.
func (q *quiet) settle(ctx context.Context, f *fleet.Fleet, l *ledger, began time.Time) {
	for {
		fell := false
		for _, n := range f.Running() {
			r, err := usageOf(ctx, n, l)
			if err != nil {
				continue
			}
			before, ok := q.after[n.Name()]
			fell = fell || !ok || r.used[goroutines] < before.used[goroutines] || r.used[files] < before.used[files]
			for i, used := range before.used {
				if ok {
					r.used[i] = min(r.used[i], used)
				}
			}
			q.after[n.Name()] = r
		}
		// Idle connections last for seconds, and lasting ones are within the slack.
		if !fell || time.Since(began) > resourcesBound || sleep(ctx, 500*time.Millisecond) != nil {
			return
		}
	}
}

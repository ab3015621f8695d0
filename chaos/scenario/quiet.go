package scenario

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"grapevine/chaos/fleet"
	"grapevine/node"
	"grapevine/prefixtree"
)

// quiet is what was found after the last request had ended.
type quiet struct {
	zero    time.Duration // when all counts were zero, or were given up
	counted int           // places that were asked
	left    []remainder

	converged time.Duration // when all agreed, or were given up
	heard     time.Duration // when all had been told the same, for the last time; or were given up
	facts     uint64
	least     uint64 // facts of the node that holds fewest
	most      uint64
	compared  int
	differ    string            // how live facts differ; "" if they agree
	engines   map[string]string // the same of single engines
	buckets   int               // spans of ten seconds that were compared
	unheard   string            // how what was told in one of them differs; "" if it does not

	after map[string]resources
}

// remainder is a count that is not zero.
type remainder struct{ place, what string }

// hush waits for a fleet to come to rest after the last request and notes how far it came. Every part has its bound; the parts run at the
// same time, because each is bounded from the same moment.
func hush(ctx context.Context, f *fleet.Fleet, l *ledger) quiet {
	q := quiet{after: make(map[string]resources)}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.count(ctx, f, began)
	}()
	q.converge(ctx, f, began)
	<-done
	q.settle(ctx, f, l, began)
	return q
}

func (q *quiet) count(ctx context.Context, f *fleet.Fleet, began time.Time) {
	for {
		left, asked := remaining(ctx, f)
		if q.zero, q.left, q.counted = time.Since(began), left, asked; len(left) == 0 || q.zero > countsBound {
			return
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// remaining asks everybody for what is under way.
func remaining(ctx context.Context, f *fleet.Fleet) (left []remainder, asked int) {
	add := func(place, what string, n int64) {
		asked++
		if n != 0 {
			left = append(left, remainder{place, fmt.Sprintf("%d %s", n, what)})
		}
	}
	for _, n := range f.Nodes() {
		if !n.Running() {
			continue
		}
		st, err := n.Status(ctx)
		var list node.BackendList
		if err == nil {
			err = n.Ask(ctx, http.MethodGet, "/backends", nil, &list)
		}
		if err != nil {
			left = append(left, remainder{n.Name(), err.Error()})
			continue
		}
		add(n.Name(), "requests in flight", int64(st.InFlight))
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

// convergeLook is how long trees that differ beyond the bound are looked at: whether they ever agree tells delay from loss.
const convergeLook = 3 * convergeBound

// converge compares what the running nodes have been told, and the live facts that they hold, until both are equal or have been looked at for
// long enough.
func (q *quiet) converge(ctx context.Context, f *fleet.Fleet, began time.Time) {
	for {
		before := q.unheard
		q.compare(ctx, f, began)
		if q.converged = time.Since(began); q.unheard != "" || before != "" || q.heard == 0 {
			q.heard = q.converged
		}
		if q.differ == "" && q.unheard == "" || q.converged > convergeLook {
			return
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

func (q *quiet) compare(ctx context.Context, f *fleet.Fleet, ended time.Time) {
	q.differ, q.unheard, q.compared, q.buckets, q.engines = "", "", 0, 0, make(map[string]string)
	var nodes []known
	var from time.Time
	for _, n := range f.Nodes() {
		if !n.Running() {
			continue
		}
		own, err := n.Facts(ctx)
		if err != nil {
			q.differ = err.Error()
			continue
		}
		g, err := n.Gossip(ctx)
		if err != nil {
			q.unheard = err.Error()
			continue
		}
		whole := time.UnixMilli(g.Stats.JournalFrom)
		if late := whole.Sub(n.Started()); late > wholeWithin && ended.Sub(n.Started()) < wholeFor {
			q.unheard = fmt.Sprintf("%s knows all that was told only from %v after its start", n.Name(), late)
		}
		if whole.After(from) {
			from = whole
		}
		nodes = append(nodes, known{n.Name(), own, g.Digests})
	}
	q.compared = len(nodes)
	for i, n := range nodes {
		told := within(n.digests, from, ended)
		if i == 0 {
			q.facts, q.least, q.most, q.buckets = n.facts.Count, n.facts.Count, n.facts.Count, len(told)
			continue
		}
		q.least, q.most = min(q.least, n.facts.Count), max(q.most, n.facts.Count)
		q.held(&nodes[0], &n, f.EngineNames())
		if q.unheard == "" {
			q.unheard = unlike(within(nodes[0].digests, from, ended), told, nodes[0].name, n.name)
		}
	}
}

// known is what a node says that it knows.
type known struct {
	name    string
	facts   *node.FactsStatus
	digests []node.DigestStatus
}

// A process has not heard what was told before it began, but taken it over as a whole: it can tell all that was said from the first span of ten
// seconds that begins after it has begun to listen, for so long at least as the journal goes back with hardly any load.
const (
	wholeWithin = readyWithin + 10*time.Second
	wholeFor    = 5 * time.Minute
)

// held notes how the live facts of two nodes differ.
func (q *quiet) held(a, b *known, engines []string) {
	if b.facts.Count != a.facts.Count || b.facts.XOR != a.facts.XOR {
		q.differ = fmt.Sprintf("%s holds %d live facts (%s), %s %d (%s)", a.name, a.facts.Count, a.facts.XOR, b.name, b.facts.Count, b.facts.XOR)
	}
	for _, engine := range engines {
		key := fmt.Sprintf("%08x", prefixtree.BackendKey(engine))
		if x, y := a.facts.Backends[key], b.facts.Backends[key]; x != y {
			q.engines[engine] = fmt.Sprintf("of %s %s holds %d live facts (%s), %s %d (%s)", engine, a.name, x.Count, x.XOR, b.name, y.Count, y.XOR)
		}
	}
}

// unlike says how two nodes' digests of what was told differ.
func unlike(a, b map[int64]node.DigestStatus, nameA, nameB string) string {
	starts := make(map[int64]bool)
	for start := range a {
		starts[start] = true
	}
	for start := range b {
		starts[start] = true
	}
	for start := range starts {
		if x, y := a[start], b[start]; x.Count != y.Count || x.XOR != y.XOR {
			return fmt.Sprintf("of ten seconds from %d ms %s has %d batches (%s), %s %d (%s)", start, nameA, x.Count, x.XOR, nameB, y.Count, y.XOR)
		}
	}
	return ""
}

// within are the digests of spans that lie between two moments as a whole.
func within(digests []node.DigestStatus, from, to time.Time) map[int64]node.DigestStatus {
	const width = 10_000
	out := make(map[int64]node.DigestStatus)
	for _, d := range digests {
		if d.StartMS >= from.UnixMilli() && d.StartMS+width <= to.UnixMilli() {
			out[d.StartMS] = d
		}
	}
	return out
}

// settle waits until every node holds little, or the bound has passed, and notes the least that each held.
func (q *quiet) settle(ctx context.Context, f *fleet.Fleet, l *ledger, began time.Time) {
	for {
		fell := false
		for _, n := range f.Nodes() {
			if !n.Running() {
				continue
			}
			r, err := usageOf(ctx, n, l)
			if err != nil {
				continue // it is not among those that were looked at, and that shows
			}
			before, ok := q.after[n.Name()]
			if !ok {
				q.after[n.Name()], fell = r, true
				continue
			}
			fell = fell || r.goroutines < before.goroutines || r.files < before.files
			r.goroutines, r.files = min(r.goroutines, before.goroutines), min(r.files, before.files)
			r.heap, r.resident = min(r.heap, before.heap), min(r.resident, before.resident)
			q.after[n.Name()] = r
		}
		// Two looks without a change are rest: idle connections are kept for seconds, and those that stay are within the slack.
		if !fell || time.Since(began) > resourcesBound || sleep(ctx, 500*time.Millisecond) != nil {
			return
		}
	}
}

package fleetsim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/chaos/workload"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
)

// oracle is what the routers of a run know perfectly, named in the policy: prefix+contents+load. It
// shows how much a better knowledge would win. Only the simulator has it.
type oracle struct {
	contents bool // what every engine will hold of the prompt when it has computed its queue
	load     bool // every engine's queue at present, and how fast it serves it
	outputs  bool // how many tokens the answer will have
}

// Events, behind a policy's name as an oracle is (prefix+events), makes engines publish cache events and nodes follow them.
const Events = "events"

// Oracles returns the names of all, in order.
func Oracles() []string { return []string{"contents", "load", "outputs"} }

// newPoint reads a policy's name: STRATEGY[@DICE][+ORACLE...]. Routers with other dice make other random choices, so that a policy
// can be compared with itself: a better one differs by more.
func newPoint(name string) (point, error) {
	strategy, known, named := strings.Cut(name, "+")
	strategy, dice, other := strings.Cut(strategy, "@")
	p := point{policy: name, strategy: strategy}
	if other {
		var err error
		if p.dice, err = strconv.ParseUint(dice, 10, 16); err != nil {
			return p, fmt.Errorf("%w: policy %q: want a number of at most %d behind the @", ErrConfig, name, math.MaxUint16)
		}
	}
	if !named {
		return p, nil
	}
	if blind[strategy] {
		return p, fmt.Errorf("%w: policy %q: %s uses no knowledge that an oracle could improve", ErrConfig, name, strategy)
	}
	for _, o := range strings.Split(known, "+") {
		if o == Events {
			p.events = true
			continue
		}
		at := slices.Index(Oracles(), o)
		if at < 0 {
			return p, fmt.Errorf("%w: policy %q: no oracle %q: want %s", ErrConfig, name, o, strings.Join(Oracles(), ", "))
		}
		*[...]*bool{&p.oracle.contents, &p.oracle.load, &p.oracle.outputs}[at] = true
	}
	if p.events && p.oracle.contents {
		return p, fmt.Errorf("%w: policy %q: who knows all caches needs no events", ErrConfig, name)
	}
	return p, nil
}

// reveal gives the router what it knows perfectly about the request and the engines before it
// chooses.
func (f *fleet) reveal(fl *flight, r *policy.Router) {
	if f.truth != nil {
		f.truth.request = fl.request
	}
	if f.point.oracle.outputs {
		fl.query.OutputHint = fl.request.OutputTokens
	}
	if f.point.oracle.load {
		f.engines.reveal(r, clock(f.now))
	}
}

// reportParts is how many peers reveal speaks for, because a router takes at most an engine's KV
// capacity from each. A queue beyond that many capacities looks as long as they are.
const reportParts = 8

// reveal reports every engine's queue to a router as that of peers. The router holds no prefill
// charges of its own, so the sum is the engine's. Its unit is the time that the engine needs, in
// tokens at the rate that the router believes.
func (e *engines) reveal(r *policy.Router, now prefixtree.Time) {
	var parts [reportParts][]books.PeerLoad
	for id, m := range e.models {
		s, b := m.Stats(), prefixtree.Backend(id)
		_, own := r.Load(b)
		seconds := float64(e.waiting[id]+m.Prefilling()) * e.slow[id] / m.Config().PrefillRate
		left, active := int64(seconds*r.Rate(b)), int64(s.Running+s.Waiting)-own
		for i := range parts {
			if left > 0 || active > 0 {
				parts[i] = append(parts[i], books.PeerLoad{Backend: b, PrefillTokens: min(left, int64(s.KVTokens)), Active: active})
			}
			left, active = max(left-int64(s.KVTokens), 0), 0
		}
	}
	for i, part := range parts {
		r.SetPeerLoad(partNames[i], nil, now) // what is left is all to be computed from now on
		r.SetPeerLoad(partNames[i], part, now)
	}
}

var partNames = func() (names [reportParts]string) {
	for i := range names {
		names[i] = fmt.Sprint("engines ", i)
	}
	return names
}()

// truth is the index of an oracle of contents.
type truth struct {
	blank
	engines     *engines
	blockTokens int
	request     *workload.Request // whose prompt the router matches next
}

// truthBudget holds some 100,000 facts: a prompt's blocks on all engines.
const truthBudget = 4 << 20

// Match records what the engines hold in a new tree and matches that, because only a tree fills
// Matches.
func (t *truth) Match(m *prefixtree.Matches, chain []prefixtree.Hash, now prefixtree.Time) {
	tree, err := prefixtree.New(prefixtree.Config{Budget: truthBudget, MaxBackends: len(t.engines.models), Horizon: time.Hour})
	if err != nil {
		panic(fmt.Sprintf("fleetsim: %v", err))
	}
	for id, engine := range t.engines.models {
		if n := min(engine.Coming(t.request.Keys, t.request.KeyTokens)/t.blockTokens, len(chain)); n > 0 {
			var touched prefixtree.TouchHistory
			tree.Record(prefixtree.Backend(id), chain[:n], now, &touched)
		}
	}
	tree.Match(m, chain, now)
}

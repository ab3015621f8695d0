package policy

import (
	"math"
	"time"

	"github.com/zeebo/xxh3"
)

// A node among others sees its own work exactly and theirs late or not at all. DESIGN.md, "Several nodes", has the
// measurements behind the numbers.
const (
	// blindAfter is the age in milliseconds beyond which loads are too old to count a decision as an informed one.
	blindAfter = 10_000
	// factsLost is the age in milliseconds beyond which placements of other nodes are not worth calling known: turns of a
	// conversation follow each other in seconds to minutes.
	factsLost = 60_000
	// unseenBoost is what each other node adds to own work where theirs is not seen: they follow the same caches and the same
	// rendezvous orders, so that a part of what they do is what this node does.
	unseenBoost = 0.3
	// rushWait is the wait for work that is not seen where a private match was touched just now, rushTime the time in which
	// that fades to a third, both in mean whole prefills: about what a prompt takes from its placement to its first token.
	rushWait, rushTime = 3.0, 3.0
	// worthless is what a report must still count to be heeded: the least remainder of it breaks ties, and the same way at all nodes.
	worthless = 0.05
	// DefaultEpsilon is e of the bounded-load test among several nodes.
	DefaultEpsilon = 0.25
	// fewChoices is the least number of rendezvous candidates where placements are known: with two, a node still tells the idle
	// backend from the busy one, and no two nodes that think alike need choose alike.
	fewChoices = 2
	// aimless is how much sooner the choices narrow to one where placements are not known, and only the order leads the
	// next turn to the same backend.
	aimless = 16
	// maxChoices bounds the choices while they are fewer than all.
	maxChoices = 64
	// maxHolders bounds the holders of equal depth that are added to the rendezvous choices.
	maxHolders = 4
)

// fleetState is what is known of the other nodes as a whole. Immutable.
type fleetState struct {
	nodes        int   // routers, this one included, at least 1
	loads, facts int64 // ms by which what the others do is known late
}

// SetFleet tells how many routers there are and how late what the others did becomes known here, as measured.
func (r *Router) SetFleet(nodes int, staleness time.Duration) {
	r.SetKnowledge(nodes, staleness, staleness)
}

// SetKnowledge is SetFleet for a fleet whose nodes tell each other their loads and their placements apart: how late each of
// the two becomes known here; Never for what is not told. Loads of which no report has ever come (SetPeerLoad) count as not
// told, whatever loads says.
func (r *Router) SetKnowledge(nodes int, loads, facts time.Duration) {
	r.fleet.Store(&fleetState{nodes: max(nodes, 1), loads: max(loads, 0).Milliseconds(), facts: max(facts, 0).Milliseconds()})
}

// outsight is what a decision makes of the other nodes: how far the reports of their work can be trusted, and so among how
// many backends it may choose by load.
type outsight struct {
	fresh float64 // what a reported token of theirs still says, 1 as if own, 0 nothing
	boost float64 // what an own token stands for, at least 1
	slack float64 // of the bounded-load test, in prompts
	blind float64 // share of the work that is not seen
	k     int     // rendezvous candidates; all: no preselection
	all   bool
}

// look returns the outsight of a node that is asked rate times a second by itself.
//
// What the others have placed since the reports in hand is unseen: m placements, m/B on each of B backends. A reported queue is
// then right with the probability that none of them went there, fresh = exp(-m/B), and so much it counts. All nodes act
// on the same reports: if each took the backend that looks best, m more would follow within one staleness. The best of
// K = B/(1 + m fresh) of them in an order that differs from prompt to prompt is somebody's own choice. Reports that count for nothing
// draw nobody together: then all backends are choices again, by own work, of which every node sees another part.
func (s *Scene) look(rate float64) outsight {
	b := float64(len(s.Candidates))
	if s.Nodes <= 1 {
		return outsight{fresh: 1, boost: 1, all: true}
	}
	others := float64(s.Nodes - 1)
	unseen := rate * others * float64(s.Staleness) / 1000
	o := outsight{fresh: math.Exp(-unseen / b)}
	if o.fresh < worthless {
		o.fresh = 0
	}
	o.boost = 1 + unseenBoost*others*(1-o.fresh)
	// A small part of the work says little of the whole: the less is seen, the less may the load overrule the order.
	o.blind = (1 - o.fresh) * others / float64(s.Nodes)
	o.slack = o.blind * o.blind * o.blind * o.blind
	k := max(b/(1+unseen*o.fresh), fewChoices)
	if s.FactStaleness > factsLost {
		k = max(b/(1+aimless*unseen), 1)
	}
	o.k = min(int(k+0.5), maxChoices)
	o.all = o.k >= len(s.Candidates)
	return o
}

// queueSeen returns the prefill tokens to expect in front of a new request, 0 for an idle backend.
func (o *outsight) queueSeen(c *Candidate) float64 {
	return c.OwnQueued*o.boost + (c.Queued-c.OwnQueued)*o.fresh
}

// activeSeen returns the requests to expect at a candidate.
func (o *outsight) activeSeen(c *Candidate) float64 {
	return float64(c.OwnActive)*o.boost + float64(c.Active-c.OwnActive)*o.fresh
}

// rateSeen returns the prefill rate to reckon with. That of a single backend counts as far as its load is seen: nodes that know
// which engine is the fastest, but not who has gone there, all go there.
func (o *outsight) rateSeen(s *Scene, c *Candidate) float64 {
	return s.FleetRate + (c.Rate-s.FleetRate)*o.fresh
}

// rush returns the seconds to wait for work that is not seen, but shows in the placements: a private match touched just now is a
// prompt that another node has just sent there. It keeps a popular document from drawing all nodes to its one holder.
func (o *outsight) rush(s *Scene, c *Candidate, mean float64) float64 {
	if o.blind == 0 || c.Held <= s.CommonTokens {
		return 0
	}
	return o.blind * rushWait * mean * math.Exp(-float64(c.Age)/1000/(rushTime*mean))
}

// orderKey returns the key whose rendezvous order breaks ties and names the candidates, and whether it leads another request of
// the same conversation to the same backends. 0: the prompt is common property to its end, and names nobody.
//
// It is the branch key, which leads whoever shares a prefix to one backend. But each node finds out by itself what is common, and so
// where prompts branch: nodes that do not know each other's placements agree on sessions sooner. And while too few
// requests have been seen to tell, the branch key may be what all have in common, and would gather them: then the whole
// prompt stands in.
func (s *Scene) orderKey() (key uint64, leads bool) {
	session := len(s.Request.Session) > 0 && s.Nodes > 1
	switch {
	case session && (s.FactStaleness > factsLost || s.Branch != 0 && !s.judged):
		return xxh3.Hash(s.Request.Session), true
	case s.Branch == 0, s.judged && s.nameless:
		return 0, false
	case s.judged:
		return uint64(s.Branch), true
	}
	return uint64(s.Request.Hashes[len(s.Request.Hashes)-1]), true
}

// preselect rules out all but the first K candidates in rendezvous order of the key whose queue is not above the others',
// and the deepest holders of what is not common property.
func (p *prefix) preselect(s *Scene, o *outsight, key uint64) {
	var sum, deepest float64
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = math.Inf(1)
		sum += c.queue
		deepest = max(deepest, c.Held)
	}
	limit := (1+p.epsilon)*sum/float64(len(s.Candidates)) + o.slack*float64(s.PromptTokens)
	at, k := s.firstFitting(key, limit, o.k)
	for _, i := range at[:k] {
		s.Candidates[i].Cost = 0
	}
	if deepest <= s.CommonTokens {
		return
	}
	added := 0
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.Held == deepest && added < maxHolders {
			c.Cost = 0
			added++
		}
	}
}

// firstFitting returns the first k candidates in rendezvous order of the key whose queue is within limit, best first. At
// least one fits whenever limit is at least the mean.
func (s *Scene) firstFitting(key uint64, limit float64, k int) (at [maxChoices]int32, n int) {
	var ranks [maxChoices]float64
	for i := range s.Candidates {
		if s.Candidates[i].queue > limit {
			continue
		}
		r := s.Rendezvous(key, i)
		if n == k && r <= ranks[n-1] {
			continue
		}
		j := min(n, k-1)
		for ; j > 0 && ranks[j-1] < r; j-- {
			ranks[j], at[j] = ranks[j-1], at[j-1]
		}
		ranks[j], at[j] = r, int32(i)
		n = min(n+1, k)
	}
	return at, n
}

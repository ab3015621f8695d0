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
	// DefaultEpsilon is e of the bounded-load test among several nodes.
	DefaultEpsilon = 0.25
	// fewChoices is the least number of rendezvous candidates where placements are known: with two, a node still tells the idle
	// backend from the busy one, and no two nodes that think alike need choose alike.
	fewChoices = 2
	// aimless is how much sooner the choices narrow, from few to one, where placements are not known, and only the order leads
	// the next turn to the same backend.
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

// outsight is what a decision makes of the other nodes: what of their work is not seen, and so among how many backends it
// may choose by load.
type outsight struct {
	blind  bool    // nothing is known of their load
	unseen float64 // else: placements of theirs that are not known yet, expected
	seen   float64 // share of the backends that are still as known: a chance, 1 if nothing is unseen
	sure   float64 // the chance that everything is still as known
	boost  float64 // blind: what an own token stands for, at least 1
	slack  float64 // blind: of the bounded-load test, in prompts
	flood  float64 // prefill tokens that the unseen placements are expected to bring
	crowd  float64 // level to which the unseen placements fill the active requests
	queue  float64 // the same of the queues, in prefill tokens
	k      int     // rendezvous candidates; all: no preselection
	all    bool
}

// look returns the outsight of a node.
//
// What the others have placed since the reports in hand is unseen: m placements on B backends. All nodes act on the same
// reports: if each took the backend that looks best, m more would follow within one staleness. The best of K = B/(1+m) of them,
// in an order that differs from prompt to prompt, is somebody's own choice.
func (s *Scene) look(o *outlook) outsight {
	b := float64(s.size())
	if s.Nodes <= 1 {
		return outsight{seen: 1, sure: 1, all: true}
	}
	late := s.loadLate()
	if late > blindAfter {
		return s.lookBlindly()
	}
	m := o.others * float64(late) / 1000
	out := outsight{unseen: m, seen: math.Exp(-m / b), sure: math.Exp(-m), flood: m * o.mean * s.FleetRate}
	if s.inferred {
		out.sure = 0 // a guess
	}
	k := max(b/(1+m), fewChoices)
	if s.FactStaleness > factsLost {
		k = max(min(b/(1+aimless*m), fewChoices), 1)
	}
	return out.among(k, s.size())
}

// lookBlindly is look where nothing is known of the others' load. Nobody is drawn anywhere by common reports: all backends are
// choices, by own work, of which every node sees another part. Unless only the order leads the next turn to the same backend.
func (s *Scene) lookBlindly() outsight {
	others := float64(s.Nodes - 1)
	out := outsight{blind: true, boost: 1 + unseenBoost*others}
	// A small part of the work says little of the whole: the less is seen, the less may the load overrule the order.
	out.slack = math.Pow(others/float64(s.Nodes), 4)
	k := math.Inf(1)
	if s.FactStaleness > factsLost {
		k = 1
	}
	return out.among(k, s.size())
}

func (o outsight) among(k float64, candidates int) outsight {
	o.k = int(min(k+0.5, maxChoices))
	o.all = k+0.5 >= float64(candidates)
	return o
}

// narrow is for a choice within a part of all candidates: what is unseen is on all of them alike.
func (o *outsight) narrow(within, all int) {
	if o.blind {
		return
	}
	part := float64(within)
	k := max(part/(1+o.unseen*part/float64(all)), fewChoices)
	if !o.all {
		k = min(k, float64(o.k))
	}
	*o = o.among(k, within)
}

// weigh sets every candidate's queue and crowd: the prefill tokens to expect in front of a new request, and the requests.
//
// What others have placed meanwhile went where it looked best, so it has filled the backends like water, from the emptiest up to
// a level. A report below the level says nothing any more; one above it, all. Reported work has meanwhile been worked off as
// long as the report is old. The own work is known, and comes on top: it is what others do not see.
func (o *outsight) weigh(s *Scene) {
	switch {
	case s.Nodes <= 1:
		for i := range s.Candidates {
			c := &s.Candidates[i]
			c.queue, c.crowd = c.Queued, float64(c.Active)
		}
		return
	case o.blind:
		for i := range s.Candidates {
			c := &s.Candidates[i]
			c.queue, c.crowd = c.OwnQueued*o.boost, float64(c.OwnActive)*o.boost
		}
		return
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.queue = float64(c.Active - c.OwnActive)
	}
	o.crowd = s.level(s.overview.crowd, o.unseen)
	late := float64(s.loadLate()) / 1000
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.crowd = max(c.queue, o.crowd) + float64(c.OwnActive)
		c.queue = max(s.allQueued(c)-c.OwnQueued-c.Rate*late, 0)
	}
	o.queue = s.level(s.overview.queue, o.flood)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.queue = max(c.queue, o.queue) + c.OwnQueued
	}
}

// level returns the water level: that of the survey if the candidates are a selection.
func (s *Scene) level(surveyed, flood float64) float64 {
	if s.sampled {
		return surveyed
	}
	return s.waterLevel(flood)
}

// waterLevel returns the level to which so many tokens fill the queues from the lowest up. Each pass leaves out the queues
// above the level that the rest would have, which only lowers it; few passes find the rest that stays.
func (s *Scene) waterLevel(flood float64) float64 {
	level := math.Inf(1)
	for {
		sum, n := flood, 0.0
		for i := range s.Candidates {
			if q := s.Candidates[i].queue; q <= level {
				sum += q
				n++
			}
		}
		if n == 0 || sum/n >= level {
			return level
		}
		level = sum / n
	}
}

// rateSeen returns the prefill rate to reckon with. Single backends differ by little, but the same way at all nodes: that counts
// only as far as it is sure that nobody has acted on it since.
func (o *outsight) rateSeen(s *Scene, c *Candidate) float64 {
	return s.FleetRate + (c.Rate-s.FleetRate)*o.sure
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
	within := 0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		c.Cost = math.Inf(1)
		if !c.outside {
			sum += c.queue
			within++
		}
		deepest = max(deepest, c.Held)
	}
	if s.sampled && within == len(s.Candidates) {
		sum, within = s.queues()
	}
	limit := (1+p.epsilon)*sum/float64(within) + o.slack*float64(s.PromptTokens)
	at, k := s.choices(key, limit, o.k)
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

// choices returns at least one and at most k candidates to choose from, best first. At least one fits whenever limit is at least the
// mean. Of a selection all that are in an order may be above it, or away: then the others that are within stand in for them, and if
// there are none, who is first is as good as any.
func (s *Scene) choices(key uint64, limit float64, k int) (at [maxChoices]int32, n int) {
	if at, n = s.firstFitting(key, limit, k, !s.sampled); n > 0 {
		return at, n
	}
	if at, n = s.firstFitting(key, limit, k, true); n > 0 {
		return at, n
	}
	if at, n = s.firstFitting(key, math.Inf(1), k, !s.sampled); n > 0 {
		return at, n
	}
	return s.firstFitting(key, math.Inf(1), k, true)
}

// firstFitting returns the first k candidates in rendezvous order of the key whose queue is within limit, best first; of a selection,
// those that are in an order, or anyone.
func (s *Scene) firstFitting(key uint64, limit float64, k int, anyone bool) (at [maxChoices]int32, n int) {
	var ranks [maxChoices]float64
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.queue > limit || c.outside || !anyone && c.rank == unranked {
			continue
		}
		r := float64(c.rank)
		if anyone {
			r = s.Rendezvous(key, i)
		}
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

package scenario

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// convergeBound is how soon after the last request all trees must be equal.
const convergeBound = 5 * time.Second

var treesConverge = Invariant{
	Name:    "trees-converge",
	Promise: "after traffic, every node has applied all batches of its peers, and all nodes hold the same live facts about the engines' caches",
	Bound:   "5 s after the last request ended",
	Seen: "each node's position in every peer's journal, and digests of all live facts. Facts about an engine that lost its cache " +
		"or lied may differ. After a kill or a clock step, the numbers of facts must agree to 2 %. If a router ended while its " +
		"peers could not hear it, only positions are compared",
	judge: func(e *evidence, f *finding) {
		q := &e.quiet
		if q.facts == 0 && q.differ == "" && q.behind == "" {
			return
		}
		f.checked = q.compared
		differ := q.differ != ""
		f.note = fmt.Sprintf("%d facts, %d streams, equal after %.2f s", q.facts, q.streams, q.converged.Seconds())
		if differ || q.behind != "" {
			f.note = strings.Replace(f.note, "equal", "not equal", 1)
		}
		lost := e.unlearned()
		killed, unheard := e.endings()
		loose := killed || e.had("clock")
		switch {
		case q.behind != "":
			f.violate(e.drained+q.converged, "the fleet", "%s", q.behind)
		case q.applied > convergeBound:
			f.violate(e.drained+q.applied, "the fleet", "every node had applied its peers' batches after %v", q.applied)
		case differ && (unheard || loose && len(lost) > 0):
			f.note += fmt.Sprintf("; a router ended while peers could not hear it, or a clock was set and caches were lost: %d to %d facts, not judged", q.least, q.most)
		case differ && loose && float64(q.most-q.least) > 0.02*float64(q.most):
			f.violate(e.drained+q.converged, "the fleet", "%d facts at one node, %d at another", q.least, q.most)
		case differ && loose:
			f.note += fmt.Sprintf("; a router was killed, or a clock set: %d to %d facts", q.least, q.most)
		case len(lost) > 0:
			e.partly(f, lost)
		case differ:
			f.violate(e.drained+q.converged, "the fleet", "%s", q.differ)
		case q.converged > convergeBound:
			f.violate(e.drained+q.converged, "the fleet", "the nodes held the same facts after %v", q.converged)
		}
	},
}

// endings reports whether a router was killed, so that peers may lack its last batch, and whether
// one ended unheard, so that they may lack many.
func (e *evidence) endings() (killed, unheard bool) {
	ended := e.had("kill", "stop", "roll", "upgrade")
	return e.had("kill"), ended && e.had("pause", "partition", "link", "expire")
}

func (e *evidence) had(kinds ...string) bool {
	return slices.ContainsFunc(e.marks, func(m Mark) bool { return slices.Contains(kinds, m.Kind) })
}

// unlearned are engines that lost their cache or lied, about which nodes may differ.
func (e *evidence) unlearned() []string {
	return slices.DeleteFunc(slices.Clone(e.engines), func(name string) bool { return !e.harmed(name, losesCache, 0, math.MaxInt64) })
}

func (e *evidence) partly(f *finding, but []string) {
	q := &e.quiet
	compared := 0
	for _, name := range e.engines {
		what := q.engines[name]
		switch {
		case slices.Contains(but, name):
			if what != "" {
				f.note += "; it lost its cache or lied: " + what
			}
			continue
		case what != "":
			f.violate(e.drained+q.converged, "the fleet", "%s", what)
		}
		compared++
	}
	if q.streams == 0 && compared == 0 {
		f.checked = 0
	}
	f.note += fmt.Sprintf("; all was applied after %.2f s, %d engines compared", q.applied.Seconds(), compared)
}

const (
	// The hit rate recovers lossBound after the loss of a router, otherBound after other faults.
	lossBound  = 2 * time.Second
	otherBound = 5 * time.Second
	// hitMargin is how much lower it may stay.
	hitMargin = 0.01
	// byChance is the probability of a false alarm per run, shared by its comparisons.
	byChance = 0.005
	// leastLook is the shortest window after one of many faults: two seconds give no variance.
	leastLook = 4 * time.Second
	// worthless is the chance above which a comparison without a difference shows nothing.
	worthless = 0.05
	// fewTurns are too few to detect a point of hit rate.
	fewTurns = 60
)

var hitRateRecovers = Invariant{
	Name:    "hit-rate-recovers",
	Promise: "the share of possible cache hits is as before the faults, to one percentage point",
	Bound:   "2 s after a router is lost, 5 s after all faults, always while streams of cache events are silent or lose batches",
	Seen: "cached tokens that engines report for later turns, as a share of the conversation so far; turns whose engine lost the " +
		"conversation do not count. A difference counts if it exceeds chance (once in 200 runs: 2.6 standard errors for one " +
		"comparison, more for several)",
	judge: func(e *evidence, f *finding) {
		before := e.past.hits(e.calm, e.struck)
		f.note = fmt.Sprintf("before: %.2f %% of %d turns", 100*before.mean, before.turns)
		if before.turns < fewTurns || e.struck >= e.stopped {
			return
		}
		var looks []look
		add := func(what string, from, to time.Duration) {
			if after := e.past.hits(from, to); after.turns >= fewTurns {
				looks = append(looks, look{what, from, to, after})
			}
		}
		for i, m := range e.marks {
			if (m.Kind == "mute" || m.Kind == "lose") && m.Struck >= 0 && m.Ending-m.Struck >= leastLook {
				add(fmt.Sprintf("during %s", m.Event), m.Struck, m.Ending)
			}
			if m.Kind != "kill" || m.Struck < 0 {
				continue
			}
			// Other faults at that time affect the hits too.
			from, to := m.Struck+lossBound, e.stopped
			for j := range e.marks {
				switch n := &e.marks[j]; {
				case j == i:
				case n.Began > m.Began:
					to = min(to, n.Began)
				case n.Over < 0:
					to = 0
				default:
					from = max(from, n.Over+settle)
				}
			}
			if m.Ending >= 0 {
				to = min(to, m.Ending)
			}
			if to-from >= leastLook {
				add(fmt.Sprintf("from 2 s after %s", m.Event), from, to)
			}
		}
		add("from 5 s after all", e.healed+otherBound, e.stopped)
		f.checked = len(looks)
		sure := standardErrors(byChance / float64(max(len(looks), 1)))
		for i, l := range looks {
			chance := sure * math.Hypot(before.wide, l.after.wide)
			if i < shownLooks || i == len(looks)-1 {
				f.note += fmt.Sprintf("; %s: %.2f %% of %d turns (give or take %.2f)", l.what, 100*l.after.mean, l.after.turns, 100*chance)
			} else if i == shownLooks {
				f.note += fmt.Sprintf("; and %d more", len(looks)-shownLooks-1)
			}
			switch {
			case l.after.mean < before.mean-hitMargin-chance:
				f.violate(l.from, "the fleet", "%s: %.2f %% of %d turns from %v to %v, before %.2f %% of %d: more than a point below, and than chance (%.2f points)",
					l.what, 100*l.after.mean, l.after.turns, l.from, l.to, 100*before.mean, before.turns, 100*chance)
			case chance > worthless:
				f.checked--
				f.note += ": too uneven to judge"
			}
		}
	},
}

// share is a mean weighted by prompt, with the error of a mean of seconds, whose events often share
// a cause.
type share struct {
	turns      int
	mean, wide float64
}

func (p *past) hits(from, to time.Duration) (s share) {
	type second struct{ hit, weight float64 }
	seconds := make(map[time.Duration]*second)
	var sum, weight float64
	first, _ := slices.BinarySearchFunc(p.turns, from, func(t turn, at time.Duration) int { return cmp.Compare(t.sent, at) })
	for _, t := range p.turns[first:] {
		if t.sent >= to {
			break
		}
		in := seconds[t.sent/time.Second]
		if in == nil {
			in = new(second)
			seconds[t.sent/time.Second] = in
		}
		in.hit += t.hit * t.possible
		in.weight += t.possible
		sum += t.hit * t.possible
		weight += t.possible
		s.turns++
	}
	if s.turns < 2 {
		return s
	}
	s.mean = sum / weight
	var spread float64
	for _, in := range seconds {
		spread += math.Pow(in.hit-in.weight*s.mean, 2)
	}
	s.wide = math.Sqrt(spread) / weight
	return s
}

func (e *evidence) turnOf(a *Attempt) (t turn, ok bool) {
	if a.Outcome != Complete || a.Possible == 0 || a.Cached < 0 || e.forgot(a) {
		return t, false
	}
	return turn{a.Sent, min(float64(a.Cached)/float64(a.Possible), 1), float64(a.Possible)}, true
}

func (e *evidence) forgot(a *Attempt) bool {
	lie := []string{"lie"}
	return e.harmed(a.By, lie, a.Kept, a.End) || e.harmed(a.Backend, lie, a.Kept, a.End) || e.harmed(a.By, forgets, a.Kept, a.Sent)
}

type look struct {
	what     string
	from, to time.Duration
	after    share
}

// shownLooks bounds the reported comparisons when none failed.
const shownLooks = 4

func standardErrors(p float64) float64 { return math.Sqrt2 * math.Erfinv(1-2*p) }

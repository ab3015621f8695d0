package share

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

// peers holds every peer's state and the sums of their claims. Safe for concurrent use.
type peers struct {
	// learn receives an engine's new means, in order, under mu.
	learn func(key uint32, lruDistance, rate Measure)

	mu      sync.Mutex
	states  []peerState // by name
	sums    map[uint32]claimSum
	changed bool // popularity, since the last sum
}

type peerState struct {
	name string
	*State
}

// set replaces a peer's state; nil removes it.
func (p *peers) set(name string, s *State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := slices.BinarySearchFunc(p.states, name, func(s peerState, name string) int { return strings.Compare(s.name, name) })
	var before, after []Claim
	if known {
		before = p.states[at].Claims
	}
	switch {
	case s == nil && known:
		p.states = slices.Delete(p.states, at, at+1)
	case s == nil:
		return
	case known:
		p.states[at].State = s
	default:
		p.states = slices.Insert(p.states, at, peerState{name, s})
	}
	if s != nil {
		after = s.Claims
	}
	p.changed = true
	p.replaceClaims(before, after)
}

// replaceClaims exchanges a peer's claims, sorted by key, in the sums.
func (p *peers) replaceClaims(before, after []Claim) {
	for len(before)+len(after) > 0 {
		var old, now Claim
		switch order := compareHeads(before, after); {
		case order < 0:
			old, now.Key, before = before[0], before[0].Key, before[1:]
		case order > 0:
			now, after = after[0], after[1:]
		default:
			old, now, before, after = before[0], after[0], before[1:], after[1:]
		}
		if old == now {
			continue
		}
		sum := p.sums[now.Key]
		sum.add(old, -1)
		sum.add(now, 1)
		if p.sums == nil {
			p.sums = make(map[uint32]claimSum)
		}
		if p.sums[now.Key] = sum; sum == (claimSum{}) {
			delete(p.sums, now.Key)
		}
		p.learn(now.Key, sum.lruDistance.mean(), sum.rate.mean())
	}
}

func compareHeads(a, b []Claim) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return cmp.Compare(a[0].Key, b[0].Key)
}

// claimSum is in fixed point, because sums of floats drift over days.
type claimSum struct {
	lruDistance, rate weightedSum
}

func (s *claimSum) add(c Claim, times int64) {
	s.lruDistance.add(c.LRUDistance, times)
	s.rate.add(c.Rate, times)
}

type weightedSum struct {
	product, weight int64 // in units of 1/fixedPoint
}

// fixedPoint: the largest claims of 2,048 peers (gossip's most) do not overflow.
const fixedPoint = 1 << 16

func (s *weightedSum) add(m Measure, times int64) {
	s.product += times * int64(math.Round(m.Mean*m.Weight*fixedPoint))
	s.weight += times * int64(math.Round(m.Weight*fixedPoint))
}

func (s weightedSum) mean() Measure {
	if s.weight == 0 {
		return Measure{}
	}
	return Measure{Mean: float64(s.product) / float64(s.weight), Weight: float64(s.weight) / fixedPoint}
}

// traffic returns the sum over the peers by pool, nil without any, and whether it changed since the last
// call. It sums in order of names, so that equal runs give equal sums.
func (p *peers) traffic() (sum map[uint64]demand.Report, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.changed {
		return nil, false
	}
	p.changed = false
	type prefix struct {
		pool   uint64
		anchor prefixtree.Hash
	}
	at := make(map[prefix]int) // in the pool's sum
	for _, s := range p.states {
		if sum == nil {
			sum = make(map[uint64]demand.Report)
		}
		for _, one := range s.Popularity.Traffic {
			all := sum[one.Pool]
			all.Pool, all.Rate, all.Whole, all.Prefill = one.Pool, all.Rate+one.Rate, all.Whole+one.Whole, all.Prefill+one.Prefill
			for _, c := range one.Prefixes {
				k := prefix{one.Pool, c.Anchor}
				i, known := at[k]
				if !known {
					i = len(all.Prefixes)
					at[k] = i
					all.Prefixes = append(all.Prefixes, demand.Count{Anchor: c.Anchor})
				}
				all.Prefixes[i].Requests += c.Requests
				all.Prefixes[i].Left += c.Left
			}
			sum[one.Pool] = all
		}
	}
	return sum, true
}

func (p *peers) work(add func([]demand.Work)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.states {
		add(s.Popularity.Works)
	}
}

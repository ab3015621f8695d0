package policy

import (
	"cmp"
	"slices"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

// OwnTraffic returns this node's traffic in the busiest pools.
func (r *Router) OwnTraffic(pools int, now prefixtree.Time) (list []demand.Report) {
	prefixes := make(map[uint64]*demand.Prefixes)
	for _, p := range r.table.Load().pools {
		if own := p.traffic.Report(p.key, now); own.Rate >= demand.LeastRate {
			list, prefixes[p.key] = append(list, own), &p.prefixes
		}
	}
	slices.SortFunc(list, func(a, b demand.Report) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Pool, b.Pool)) })
	list = list[:min(len(list), pools)]
	for i := range list {
		list[i].Prefixes = prefixes[list[i].Pool].Counts()
	}
	return list
}

// SetPeerTraffic sets the other nodes' traffic, summed by pool; nil: unknown. The map must not change afterwards.
func (r *Router) SetPeerTraffic(sum map[uint64]demand.Report) {
	r.viewMu.Lock()
	defer r.viewMu.Unlock()
	r.peerTraffic = sum
	for _, p := range r.table.Load().pools {
		p.hear(sum[p.key])
	}
}

// hear takes the other nodes' sum; zero: unknown.
func (p *pool) hear(sum demand.Report) {
	p.prefixes.SetPeers(sum.Prefixes, len(p.entries))
	p.traffic.SetPeers(sum)
}

// OwnWork returns this node's work for at most so many pools.
func (r *Router) OwnWork(pools int, now prefixtree.Time) (list []demand.Work) {
	for _, p := range r.table.Load().pools {
		works := p.prefixes.Works(p.key, now)
		if len(works) == 0 {
			continue
		}
		list = append(list, works...)
		if pools--; pools == 0 {
			break
		}
	}
	return list
}

// Affinities returns the models in use, busiest first. The pools that rules make of a model's backends are summed.
func (r *Router) Affinities(now prefixtree.Time) (list []demand.Affinity) {
	byModel := make(map[string]int)
	for _, p := range r.table.Load().pools {
		a := p.traffic.Affinity(p.model, now)
		if !p.named || a.Rate < demand.LeastRate {
			continue
		}
		if i, known := byModel[p.model]; known {
			list[i].Add(a)
		} else {
			byModel[p.model] = len(list)
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b demand.Affinity) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Model, b.Model))
	})
	return list
}

// Shape is the tree of the prefixes that prompts of a pool share, as this node has counted them.
type Shape struct {
	Model    string // "": requests without one; "*": models that no engine lists
	Labels   string // of the pool's engines, as a rule names them; "": any
	Requests float64
	Prefixes []demand.SharedPrefix
}

// Shapes returns the shapes of this node's busiest pools, with so many prefixes in all. A pool takes less than a millisecond. Safe for
// concurrent use.
func (r *Router) Shapes(pools, prefixes int) (list []Shape) {
	type counted struct {
		*pool
		tree *demand.Tree
	}
	var busy []counted
	for _, p := range r.table.Load().pools {
		if tree := p.prefixes.Tree(); p.named && tree != nil {
			busy = append(busy, counted{p, tree})
		}
	}
	slices.SortFunc(busy, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.tree.Requests, a.tree.Requests), cmp.Compare(a.key, b.key))
	})
	busy = busy[:min(len(busy), pools)]
	for _, p := range busy {
		perBlock := float64(r.cfg.BlockBytes) / p.texts.bytesPerToken()
		list = append(list, Shape{p.model, p.labels, p.tree.Requests, p.tree.Shape(prefixes/len(busy), perBlock)})
	}
	return list
}

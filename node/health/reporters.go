package health

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"
)

func (b *Board) assign(e *watched) {
	e.reporters = Assigned(e.Key, b.nodes, Reporters)
	e.mine = slices.Contains(e.reporters, b.cfg.Self)
}

// Mine reports whether this node is one of the engine's reporters; also before the board knows the engine, since it then knows no peers.
func (b *Board) Mine(key uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.engines[key]
	return e == nil || e.mine
}

// Assigned returns the first nodes, at most so many, in the rendezvous order of an engine: nodes agree, and a new node moves only its
// share.
func Assigned(key uint32, nodes []string, most int) []string {
	type ranked struct {
		rank uint64
		name string
	}
	list := make([]ranked, len(nodes))
	for i, n := range nodes {
		list[i] = ranked{xxh3.HashStringSeed(n, uint64(key)), n}
	}
	slices.SortFunc(list, func(x, y ranked) int { return cmp.Or(cmp.Compare(y.rank, x.rank), cmp.Compare(x.name, y.name)) })
	out := make([]string, min(most, len(list)))
	for i := range out {
		out[i] = list[i].name
	}
	return out
}

package health

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"
)

// assign uses rendezvous order: nodes agree, and a new node moves only its share.
func (b *Board) assign(e *watched) {
	e.reporters = reportersOf(e.Key, b.nodes)
	e.mine = slices.Contains(e.reporters, b.cfg.Self)
}

func reportersOf(key uint32, nodes []string) []string {
	type ranked struct {
		rank uint64
		name string
	}
	list := make([]ranked, len(nodes))
	for i, n := range nodes {
		list[i] = ranked{xxh3.HashStringSeed(n, uint64(key)), n}
	}
	slices.SortFunc(list, func(x, y ranked) int { return cmp.Or(cmp.Compare(y.rank, x.rank), cmp.Compare(x.name, y.name)) })
	out := make([]string, min(Reporters, len(list)))
	for i := range out {
		out[i] = list[i].name
	}
	return out
}

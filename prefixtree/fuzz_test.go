package prefixtree

import (
	"testing"
	"time"
)

// Any operations over few hashes leave the structure sound and within its budget.
func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 1, 20, 5, 1, 1, 20, 5, 7, 1, 30, 0, 3, 2, 9, 9})
	f.Add([]byte{4, 1, 40, 5, 5, 1, 2, 0, 4, 1, 40, 5, 9, 0, 60, 1, 8, 200, 0, 0})
	f.Add([]byte{0, 1, 20, 5, 7, 6, 20, 5}) // Revert of a backend that is none
	f.Fuzz(func(t *testing.T, ops []byte) {
		const backends = 6
		ops = ops[:min(len(ops), 200)]
		tree, err := New(Config{MaxBackends: backends, Budget: 64 << 10, Horizon: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		now := start
		var m Matches
		var tr TouchHistory
		for ; len(ops) >= 4; ops = ops[4:] {
			b, n, arg := Backend(ops[1]%(backends+1)), int(ops[2]), int(ops[3])
			chain := fuzzChain(ops[1]/16, n, arg)
			switch ops[0] % 9 {
			case 0, 1:
				tree.Record(b, chain, now-Time(arg), &tr)
			case 2:
				tree.Learn(b, chain, &tr, arg-1, now)
			case 3:
				tree.Drop(b, chain, arg-2, maxTime)
			case 4:
				for _, fact := range tree.AppendFacts(nil, b, chain, now-Time(100*arg)) {
					fact.Generation = uint32(arg % 4)
					tree.Apply(fact)
				}
			case 5:
				tree.SetGeneration(b, uint32(arg), now)
			case 6:
				tree.Forget(b, now-Time(arg))
			case 7:
				tree.Revert(b, chain, &tr)
			case 8:
				now += Time(n) * 100
				tree.SetCapacity(b, arg)
			}
			tree.Match(&m, chain, now)
			for _, h := range m.Holders() {
				if h.Blocks < 1 || int(h.Blocks) > len(chain) || h.Fresh > h.Blocks || int(h.Backend) >= backends ||
					h.Expected < float32(h.Fresh) || h.Expected > float32(h.Blocks) || h.Age < 0 {
					t.Fatalf("%d blocks: %+v", len(chain), h)
				}
			}
		}
		checkShards(t, tree)
		if st := tree.Stats(); st.Bytes > 64<<10 {
			t.Fatalf("%+v", st)
		}
	})
}

// fuzzChain leaves its family after leave blocks; every 50th hash is zero.
func fuzzChain(family byte, n, leave int) []Hash {
	chain := make([]Hash, n)
	for i := range chain {
		h := uint64(family)<<8 | uint64(i)
		if i > leave {
			h |= uint64(leave) << 16
		}
		chain[i] = Hash(h * 0x9e3779b97f4a7c15)
		if i%50 == 49 {
			chain[i] = 0
		}
	}
	return chain
}

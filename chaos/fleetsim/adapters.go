package fleetsim

import (
	"fmt"
	"math/rand/v2"

	"grapevine.example/chaos/workload"
)

func adapterName(k int) string { return fmt.Sprintf("adapter-%d", k) }

// adapt gives a request its session's adapter, which is part of the root of the prompt.
func (f *fleet) adapt(fl *flight) {
	r := fl.request
	rng := rand.New(rand.NewPCG(f.cfg.Options.Seed, uint64(r.Session)))
	sum := 0.0
	for k := range f.cfg.Adapters {
		sum += 1 / float64(k+1)
	}
	at, k := rng.Float64()*sum, 0
	for ; k+1 < f.cfg.Adapters && at > 1/float64(k+1); k++ {
		at -= 1 / float64(k+1)
	}
	root := func(keys []uint64) []uint64 {
		out := make([]uint64, len(keys))
		for i, key := range keys {
			out[i] = key ^ uint64(k+1)*0x9e3779b97f4a7c15
		}
		return out
	}
	own := workload.Request{Keys: root(r.Keys), KeyTokens: r.KeyTokens}
	fl.hashes = f.feed.hashes(fl.hashes[:0], &f.feed.scratch, &own)
	fl.query.Hashes = fl.hashes
	fl.query.Model = []byte(adapterName(k))
	fl.job.Keys, fl.job.OutKeys, fl.job.Adapter = own.Keys, root(r.OutKeys), uint64(k+1)
}

func (e *engines) adapters(id int) (inUse []string) {
	running, waiting := e.models[id].Adapters()
	for _, k := range append(running, waiting...) {
		inUse = append(inUse, adapterName(int(k)-1))
	}
	return inUse
}

package family

import (
	"container/list"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/workload"
)

const (
	uneven     = 3.0 // largest speed or cache of mixed engines over the least
	slowdown   = 5.0
	joinEvery  = time.Minute
	maxRunning = 64
	// chunkTime is longer than a decode step, so that decoding does not slow prefill.
	chunkTime   = 40 * time.Millisecond
	leastChunk  = 128
	pinnedRoom  = 2 // KV memory for running requests over what they hold on average
	fewestFit   = 3 // requests as large as the largest that an engine's KV memory holds at least
	blockTokens = 16
)

// site is a draw made concrete.
type site struct {
	script  *workload.Script
	engines []fleetsim.Engine
}

// machine is an engine, with its speed and cache relative to the others of its model.
type machine struct {
	model        int
	speed, cache float64
	fleetsim.Engine
}

// machines draws the engines; models take turns. In a joining fleet, up to a third come later.
func (d *Draw) machines() []machine {
	rng := d.random(streamEngines)
	out := make([]machine, d.Engines)
	for i := range out {
		m := &out[i]
		m.model, m.speed, m.cache = i%d.Models, 1, 1
		if d.Models > 1 {
			m.Model = fmt.Sprint("model-", m.model)
		}
		if d.Fleet == "mixed" {
			m.speed, m.cache = math.Pow(uneven, rng.Float64()), math.Pow(uneven, rng.Float64())
		}
	}
	switch d.Fleet {
	case "degrading":
		m := &out[rng.IntN(len(out))]
		m.SlowAt, m.SlowBy = d.length()/2, slowdown
	case "joining":
		late := min(d.Engines/3, int((d.length()-1)/joinEvery))
		for i := range late {
			out[d.Engines-late+i].Joins = time.Duration(i+1) * joinEvery
		}
	}
	return out
}

// capacity is the engine's time at full speed between warm-up and the end, times its speed.
func (m *machine) capacity(d *Draw) float64 {
	from, to := max(d.warmup(), m.Joins), d.length()
	if m.SlowBy > 0 {
		return m.speed * ((m.SlowAt - from).Seconds() + (to-m.SlowAt).Seconds()/m.SlowBy)
	}
	return m.speed * (to - from).Seconds()
}

// build writes the calls and sizes the engines for them, each model's alone. Caches hold d.Cache times
// the distinct tokens of the run, and what running requests pin. The load is the share of the
// engines' time that it takes to compute what one cache of that size lacks, if requests queue
// nowhere. Engines have many caches and so compute more. A model without a call after the warm-up has
// nothing to measure, and its engines keep the default rate.
func (d *Draw) build() site {
	machines := d.machines()
	weights := make([]float64, d.Models)
	for i := range machines {
		weights[machines[i].model] += machines[i].capacity(d)
	}
	calls := d.write(weights)
	s := site{script: &workload.Script{Label: fmt.Sprintf("family %d of seed %d", d.Number, d.Seed), Length: d.length()}}
	for i := range calls {
		if d.Models > 1 {
			calls[i].Model = fmt.Sprint("model-", calls[i].model)
		}
		s.script.Calls = append(s.script.Calls, calls[i].Call)
	}
	ordered := byExpected(calls)
	for model := range d.Models {
		w := d.needs(ordered, model)
		var speeds, caches float64
		for i := range machines {
			if m := &machines[i]; m.model == model {
				speeds, caches = speeds+m.speed, caches+m.cache
			}
		}
		for i := range machines {
			m := &machines[i]
			if m.model != model {
				continue
			}
			rate := w.uncached / (d.Load * weights[model]) * m.speed
			kv := d.Cache*w.distinct*m.cache/caches + pinnedRoom*w.pinned*m.speed/speeds
			m.Config = engine.Config{
				KVTokens: max(int(kv), fewestFit*w.largest), BlockTokens: blockTokens, MaxRunning: maxRunning,
				PrefillRate: rate, ChunkTokens: max(leastChunk, int(rate*chunkTime.Seconds())), DecodeStep: decodeStep,
			}
		}
	}
	for i := range machines {
		s.engines = append(s.engines, machines[i].Engine)
	}
	return s
}

// work is what the calls of one model need, in tokens.
type work struct {
	distinct float64 // of prompts and answers
	uncached float64 // to compute after the warm-up, with one cache
	pinned   float64 // of requests that run, on average
	largest  int
}

func (d *Draw) needs(ordered []*call, model int) (w work) {
	seen := map[uint64]bool{}
	for _, c := range ordered {
		if c.model != model {
			continue
		}
		for _, k := range c.Answered.Keys() {
			seen[k] = true
		}
		w.largest = max(w.largest, c.Answered.Tokens())
		w.pinned += float64(c.Answered.Tokens()) * c.service().Seconds() / d.length().Seconds()
	}
	w.distinct = float64(len(seen) * keyTokens)
	one := newLRU(int(d.Cache * float64(len(seen))))
	for _, c := range ordered {
		if c.model != model {
			continue
		}
		if held := one.use(c.Prompt.Keys(), c.Answered.Keys()); c.expected >= d.warmup() {
			w.uncached += float64(c.Prompt.Tokens() - held*keyTokens)
		}
	}
	return w
}

// lru is one cache of a number of keys.
type lru struct {
	size  int
	order *list.List // of keys, the latest in front
	at    map[uint64]*list.Element
}

func newLRU(size int) *lru {
	return &lru{size: max(size, 1), order: list.New(), at: map[uint64]*list.Element{}}
}

// use returns how many leading keys of the prompt are held and then holds all of the answered one, the
// root as the latest.
func (l *lru) use(prompt, answered []uint64) (held int) {
	for held < len(prompt) && l.at[prompt[held]] != nil {
		held++
	}
	for i := len(answered) - 1; i >= 0; i-- {
		k := answered[i]
		if e := l.at[k]; e != nil {
			l.order.MoveToFront(e)
			continue
		}
		l.at[k] = l.order.PushFront(k)
		if l.order.Len() > l.size {
			delete(l.at, l.order.Remove(l.order.Back()).(uint64))
		}
	}
	return held
}

// config is the simulation of the draw, without policies and the number of nodes.
func (d *Draw) config(s site) fleetsim.Config {
	return fleetsim.Config{
		Workload: s.script, Options: workload.Options{Seed: rand.New(rand.NewPCG(d.Seed, uint64(d.Number))).Uint64() >> 32},
		Staleness: []time.Duration{time.Duration(d.StalenessMS) * time.Millisecond},
		Engines:   s.engines, Warmup: d.warmup(), Telemetry: d.Telemetry, EventDelay: d.eventDelay, Parallel: 1,
	}
}

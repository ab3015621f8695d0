package streams

import (
	"sync"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
)

const (
	// leastLoaded is how many tokens an engine must have loaded before what they took counts, and mostLoaded how many are remembered:
	// twice as many become half.
	leastLoaded, mostLoaded = 1 << 12, 1 << 20
)

// price is how long an engine takes to load what lower tiers hold. It stays while the engine restarts, and another engine with the same
// number has its own. The zero value is ready for use. Safe for concurrent use.
type price struct {
	mu         sync.Mutex
	host, disk fetches
	rate       float64 // prompt tokens that it computes in a second
}

// fetches are sums of what was loaded lately.
type fetches struct {
	tokens, seconds float64
	wasTokens       int64 // of the last report
	wasTime         time.Duration
	reported        bool
}

func (f *fetches) add(tokens int64, took time.Duration) {
	if tokens < 0 || took < 0 {
		return
	}
	if n, d := tokens-f.wasTokens, took-f.wasTime; f.reported && n > 0 && d >= 0 { // a restarted engine counts from 0
		f.tokens, f.seconds = f.tokens+float64(n), f.seconds+d.Seconds()
		for ; f.tokens > 2*mostLoaded; f.tokens /= 2 {
			f.seconds /= 2
		}
	}
	f.reported, f.wasTokens, f.wasTime = true, tokens, took
}

// of returns the time that loading a token takes, as a part of what its computation takes, and whether it is known.
func (f *fetches) of(rate float64) (part float64, known bool) {
	if f.tokens < leastLoaded || rate <= 0 {
		return 0, false
	}
	return f.seconds / f.tokens * rate, true
}

// Loaded takes an engine's report of what it has loaded from lower tiers, and how many prompt tokens it computes in a second. Only of
// engines that this node follows does it know what lower tiers hold.
func (s *Caches) Loaded(b prefixtree.Backend, m *engine.Metrics, rate float64) {
	if c := s.of(b); c != nil && c.price != nil && m.Loaded >= 0 && m.LoadTime >= 0 {
		c.price.add(m, rate)
	}
}

func (p *price) add(m *engine.Metrics, rate float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
	p.host.add(m.Loaded, m.LoadTime)
	p.disk.add(m.Read, m.ReadTime)
}

// of returns how many tokens the engine would compute in the time in which it loads these: at most as many, since what takes longer to
// load than to compute is worth no more than what is not there. Of no price, nothing is known.
func (p *price) of(host, disk int) float64 {
	if host+disk == 0 {
		return 0
	}
	cpu, read := usualCPU, usualDisk
	if p != nil {
		p.mu.Lock()
		if part, known := p.host.of(p.rate); known {
			cpu = min(part, 1)
			read = max(read, cpu)
		}
		if part, known := p.disk.of(p.rate); known {
			read = min(cpu+part, 1)
		}
		p.mu.Unlock()
	}
	return cpu*float64(host) + read*float64(disk)
}

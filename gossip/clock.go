package gossip

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Eight seconds of pings: one meets no queue, and a slewed clock is followed.
const clockSamples = 16

// clockFilter estimates a peer's clock by the shortest round trip, wrong by at most half of it (RFC
// 5905, section 10). Not safe for concurrent use.
type clockFilter struct {
	samples [clockSamples]clockSample
	n       int
}

type clockSample struct {
	rtt    time.Duration
	offset time.Duration // added to the peer's clock, gives this node's
}

// add takes a round trip in Unix nanoseconds: sent and returned on this node's clock, received and
// replied on the peer's.
func (c *clockFilter) add(sent, received, replied, returned int64) {
	rtt := returned - sent - (replied - received)
	if returned < sent || rtt < 0 {
		return // a clock was set back, or the peer invents times
	}
	// Halving first avoids overflow between times far apart.
	offset := (sent/2 - received/2) + (returned/2 - replied/2)
	// Samples that differ by more than their errors mean that a clock was set.
	if old, ok := c.best(); ok {
		if apart := time.Duration(offset) - old.offset; max(apart, -apart) > (old.rtt+time.Duration(rtt))/2+shiftBand {
			c.n = 0
		}
	}
	c.samples[c.n%clockSamples] = clockSample{time.Duration(rtt), time.Duration(offset)}
	c.n++
}

func (c *clockFilter) best() (s clockSample, ok bool) {
	n := min(c.n, clockSamples)
	if n == 0 {
		return s, false
	}
	return slices.MinFunc(c.samples[:n], func(a, b clockSample) int { return cmp.Compare(a.rtt, b.rtt) }), true
}

// shiftBand is the certain clock difference at which the shift changes: merging takes the latest
// time, so measurement errors must not enter.
const shiftBand = 500 * time.Millisecond

// steady keeps the used offset until the measurement is certainly outside the band.
func steady(used time.Duration, measured clockSample) time.Duration {
	if d := measured.offset - used; max(d, -d)-measured.rtt/2 < shiftBand {
		return used
	}
	return measured.offset
}

// lagGain follows the lag in a quarter of a second at 20 batches a second.
const lagGain = 0.2

// lagged records the age of a frame sent at said. Older frames than the stream waited for it;
// silence has counted as lag.
func (s *subscription) lagged(said, now time.Time) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	best, ok := s.p.clock.best()
	if !ok {
		return
	}
	age := s.x.wall(now).Sub(said.Add(best.offset)) // Sub saturates for absurd clocks
	if age > now.Sub(s.began) {
		return
	}
	age = max(age, 0) // the offset is an estimate
	if s.p.lagged {
		age = s.p.Lag + time.Duration(lagGain*float64(age-s.p.Lag))
	}
	s.p.Lag, s.p.lagged = age, true
}

// staleness returns how old peers' actions may be when this node learns of them: they waited up to a flush at the peer, and
// then for the 75 % quantile of the sorted lags. A higher one would let one hung stream blind every node, a median would
// hide enough work for a herd.
func staleness(lags []time.Duration, flush time.Duration) time.Duration {
	if len(lags) == 0 {
		return 0
	}
	return lags[int(math.Ceil(0.75*float64(len(lags))))-1] + flush
}

package gossip

import "time"

// clockSamples is how many round trips the clock filter looks back on: eight seconds of pings. Long
// enough that one of them met no queue, short enough to follow a clock that is being slewed.
const clockSamples = 16

// clockFilter estimates another node's clock from round trips. The sample with the least round trip
// was delayed least on either way, so its offset is wrong by at most half of that (Mills, RFC 5905,
// section 10: the clock filter). The zero value is ready. Not safe for concurrent use.
type clockFilter struct {
	samples [clockSamples]clockSample
	n       int // taken so far
}

type clockSample struct {
	rtt    time.Duration
	offset time.Duration // to add to the other's clock to have ours
}

// add takes the four times of a round trip in Unix nanoseconds: sent and returned on our clock,
// received and replied on the other's. Samples that cannot be are ignored.
func (c *clockFilter) add(sent, received, replied, returned int64) {
	rtt := returned - sent - (replied - received)
	if returned < sent || rtt < 0 {
		return // a clock was set back, or the other invents times
	}
	// In halves, so that times far apart do not overflow.
	offset := (sent/2 - received/2) + (returned/2 - replied/2)
	// Each is wrong by at most half its round trip. Two that cannot both be right mean that a clock
	// was set.
	if old, ok := c.best(); ok {
		if apart := time.Duration(offset) - old.offset; max(apart, -apart) > (old.rtt+time.Duration(rtt))/2+shiftBand {
			c.n = 0
		}
	}
	c.samples[c.n%clockSamples] = clockSample{time.Duration(rtt), time.Duration(offset)}
	c.n++
}

// best is the estimate; ok is false before the first sample.
func (c *clockFilter) best() (s clockSample, ok bool) {
	n := min(c.n, clockSamples)
	if n == 0 {
		return s, false
	}
	s = c.samples[0]
	for _, o := range c.samples[1:n] {
		if o.rtt < s.rtt {
			s = o
		}
	}
	return s, true
}

// shiftBand is how far a measured offset must be from the shift in use before that is changed.
// Merging takes the latest time, so nodes agree on a fact only if all put it at the same time:
// errors of measurement must not enter it, and clocks kept by NTP are far closer than what half a
// second does to a horizon of minutes.
const shiftBand = 500 * time.Millisecond

// steady follows offsets in steps: it stays at its value, first 0, until the measurement is outside
// the band around it for certain. A round trip that waited on one way, as the first one behind a
// cut does, shows half of that wait as an offset.
func steady(used time.Duration, measured clockSample) time.Duration {
	if d := measured.offset - used; max(d, -d)-measured.rtt/2 < shiftBand {
		return used
	}
	return measured.offset
}

// lagGain is the weight of a new sample in the smoothed lag: at 20 batches a second it follows in a
// quarter of a second.
const lagGain = 0.2

// smooth moves a smoothed duration towards a sample.
func smooth(old, sample time.Duration, first bool) time.Duration {
	sample = max(sample, 0) // offsets are estimates: news does not come before it happened
	if first {
		return sample
	}
	return old + time.Duration(lagGain*float64(sample-old))
}

// lagged takes a sample of how old something was when it came, given when it was sent on the
// publisher's clock. Samples older than the stream are ignored: they waited for the stream, not on
// it, and silence was the lag until then.
func (s *subscription) lagged(said, now time.Time) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	best, ok := s.p.clock.best()
	if !ok {
		return
	}
	age := s.f.wall(now).Sub(said.Add(best.offset)) // of absurd clocks: the largest duration there is
	if age > now.Sub(s.began) {
		return
	}
	s.p.lag = smooth(s.p.lag, age, !s.p.lagged)
	s.p.lagged = true
}

// staleQuantile is which of the peers' lags, in ascending order, is the fleet's staleness: see
// staleness.
const staleQuantile = 0.75

// staleness sums up lags, which must be sorted in ascending order, in one figure: three quarters of
// the peers are at least as fresh. Not the mean, nor the maximum: a peer whose stream hangs while
// the rest is fresh hides its own placements only, a small part of all work, and must not make
// every node route as if it were blind. Not the median: when more than a quarter is late, as at the
// beginning of a partition, what cannot be seen is work enough to make a herd.
func staleness(lags []time.Duration) time.Duration {
	if len(lags) == 0 {
		return 0
	}
	i := int(staleQuantile * float64(len(lags)))
	if float64(i) < staleQuantile*float64(len(lags)) {
		i++
	}
	return lags[max(i, 1)-1]
}

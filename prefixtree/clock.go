package prefixtree

const (
	// clockMarks, a twentieth of a reach apart, remember three reaches, the retention of facts.
	clockMarks    = 64
	marksPerReach = 20

	// minDisplaced is how many new blocks must have come in for an eviction to be put down to them; with fewer, whatever
	// displaced the block was not seen by this tree and only its age is known.
	minDisplaced = 8

	// minRateMs: a rate over less than a second is noise.
	minRateMs = 1000
)

// learned is the state that evidence moves: a reach in blocks or, as long as that is 0, an age in ms.
type learned struct {
	reach   float64
	horizon int64
	taught  bool // by evidence, no longer only by configuration
}

// volumeClock is the history of one backend's new blocks.
//
// An LRU cache forgets by volume, not by time: a block goes once as much new has come in as the cache holds. The volume
// clock of a backend counts the blocks placed on it that were new to it and remembers when, so that any age can be told in
// blocks displaced since. What is learned is the reach: how many new blocks displace an untouched one (about the
// cache's capacity, less what outputs and unseen traffic take). The horizon in time follows from it at once: it shrinks in
// a burst, and stands still, as an edge in the past, while nothing comes in.
//
// Not safe for concurrent use.
type volumeClock struct {
	learned
	volume float64 // new blocks since began
	began  Time
	now    Time // latest placement
	marks  []clockMark
	head   int     // next to overwrite once marks is full
	owed   float64 // correction not yet made, negative: the volume never falls
}

type clockMark struct {
	at     Time
	volume float64
}

func (c *volumeClock) setCapacity(blocks float64) {
	if !c.taught {
		c.reach = blocks
	}
}

// advance counts blocks new at now; negative ones correct an earlier count.
func (c *volumeClock) advance(blocks float64, now Time) {
	if c.marks == nil {
		c.marks = make([]clockMark, 0, clockMarks)
		c.began = now
		c.mark(now)
	}
	c.now = max(c.now, now)
	c.owed += blocks
	c.volume += max(0, c.owed)
	c.owed = min(0, c.owed)
	last := c.last()
	due := c.volume-last.volume >= c.reach/marksPerReach
	if c.reach == 0 {
		due = int64(c.now-last.at) >= c.horizon/marksPerReach
	}
	if due && c.now > last.at {
		c.mark(c.now)
	}
}

func (c *volumeClock) mark(at Time) {
	m := clockMark{at, c.volume}
	if len(c.marks) < clockMarks {
		c.marks = append(c.marks, m)
		return
	}
	c.marks[c.head] = m
	c.head = (c.head + 1) % clockMarks
}

// nth returns the i-th mark, oldest first.
func (c *volumeClock) nth(i int) clockMark { return c.marks[(c.head+i)%len(c.marks)] }

func (c *volumeClock) last() clockMark { return c.nth(len(c.marks) - 1) }

// since returns how many new blocks have come in since the given time.
func (c *volumeClock) since(at Time) float64 {
	upper := clockMark{c.now, c.volume}
	for i := len(c.marks) - 1; i >= 0; i-- {
		lower := c.nth(i)
		if at >= lower.at {
			if at >= upper.at {
				return c.volume - upper.volume
			}
			share := float64(at-lower.at) / float64(upper.at-lower.at)
			return c.volume - lower.volume - share*(upper.volume-lower.volume)
		}
		upper = lower
	}
	return c.volume - upper.volume
}

// span returns the horizon as limits keep it: the edge behind which the last reach blocks came in, or an age.
func (c *volumeClock) span() int64 {
	if c.reach == 0 || c.volume == 0 {
		return c.horizon
	}
	upper := clockMark{c.now, c.volume}
	target := c.volume - c.reach
	for i := len(c.marks) - 1; i >= 0; i-- {
		lower := c.nth(i)
		if lower.volume <= target {
			share := 0.0
			if upper.volume > lower.volume {
				share = (target - lower.volume) / (upper.volume - lower.volume)
			}
			return -int64(max(1, lower.at+Time(share*float64(upper.at-lower.at))))
		}
		upper = lower
	}
	// The history does not reach that far, be it that the cache has not been filled once: extrapolate.
	elapsed, volume := float64(c.now-upper.at), c.volume-upper.volume
	if elapsed < minRateMs || volume < 1 {
		return c.horizon
	}
	return -max(1, int64(c.now)-int64(min(elapsed*c.reach/volume, float64(maxHorizonMs))))
}

// evicted takes the evidence that a block last touched at the given time, before a request recorded at seen, was gone.
func (c *volumeClock) evicted(at, seen Time, horizon int64) {
	age := int64(seen - at)
	if age >= horizon {
		return
	}
	displaced := c.since(at) - c.since(seen)
	switch {
	case c.reach > 0 && c.taught:
		c.reach = max(1, c.reach+shrinkRate*min(0, displaced-c.reach))
	case displaced >= minDisplaced:
		c.reach = displaced
	case c.reach == 0 && c.taught:
		c.horizon = max(minHorizonMs, c.horizon+int64(shrinkRate*float64(age-c.horizon)))
	default:
		c.reach, c.horizon = 0, max(minHorizonMs, age)
	}
	c.taught = true
}

// survived takes the evidence that a block last touched at the given time was still there for a request recorded at seen.
func (c *volumeClock) survived(at, seen Time, horizon int64) {
	age := int64(seen - at)
	if age <= horizon {
		return
	}
	c.taught = true
	if c.reach == 0 {
		c.horizon = min(maxHorizonMs, c.horizon+int64(growRate*float64(age-c.horizon)))
		return
	}
	if displaced := c.since(at) - c.since(seen); displaced > c.reach {
		c.reach += growRate * (displaced - c.reach)
	}
}

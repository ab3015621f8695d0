package prefixtree

import "slices"

const (
	// usageMarks, about a twentieth of a reach apart, remember some three reaches, the retention of facts.
	usageMarks    = 64
	marksPerReach = 20

	// minDisplaced is how many blocks must have been used since for an eviction to be put down to them; with fewer, whatever
	// displaced the block was not seen by this tree and only its age is known.
	minDisplaced = 8

	// minRateMs: a rate over less than a second is noise.
	minRateMs = 1000
)

// learned is the state that this node's own evidence moves: a reach in blocks or, as long as that is 0, an age in ms.
type learned struct {
	reach   float64
	horizon int64
	taught  bool // by evidence, no longer only by configuration
	weight  weight
}

// usage is the recent history of one backend's blocks: how many of them were last touched when.
//
// An LRU cache forgets by use, not by time: a block goes once as many distinct other blocks have been used since as the
// cache holds. usage counts the backend's blocks by the time of their last touch, in some tens of intervals, so that it
// knows for any time how many were touched since. What is learned is the reach: at how many an untouched block is
// displaced (the cache's capacity, less what outputs and unseen traffic take). The horizon in time follows from it at once:
// it shrinks in a burst and stands still, as an edge in the past, while nothing comes in.
//
// Not safe for concurrent use.
type usage struct {
	learned
	proof    proof
	peers    peerReach
	believed float64     // the reach to go by: reach and peers combined
	now      Time        // latest touch
	marks    []usageMark // oldest first
}

// usageMark counts the blocks last touched from its time up to that of the next mark.
type usageMark struct {
	at     Time
	blocks float64
}

func (u *usage) setCapacity(blocks float64) {
	if !u.taught {
		u.reach = blocks
		u.combine()
	}
}

// clear forgets the blocks, not what has been learned.
func (u *usage) clear() { u.marks, u.proof = u.marks[:0], proof{} }

// forget forgets the blocks last touched up to the given time.
func (u *usage) forget(upTo Time) {
	u.marks = slices.DeleteFunc(u.marks, func(m usageMark) bool { return m.at <= upTo })
	u.proof = proof{}
}

// touch counts blocks as last touched at the given time.
func (u *usage) touch(at Time, blocks float64) {
	u.now = max(u.now, at)
	if i := u.interval(at); i >= 0 && (i < len(u.marks)-1 || !u.due(at, blocks)) {
		u.marks[i].blocks += blocks
		return
	} else if i < 0 && len(u.marks) > 0 {
		return // older than anything remembered
	}
	if u.marks == nil {
		u.marks = make([]usageMark, 0, usageMarks)
	}
	if len(u.marks) == usageMarks {
		u.join()
	}
	u.marks = append(u.marks, usageMark{at, blocks})
}

// due says whether the last interval is full.
func (u *usage) due(at Time, blocks float64) bool {
	last := u.marks[len(u.marks)-1]
	if u.believed == 0 {
		return int64(at-last.at) >= u.horizon/marksPerReach
	}
	return at > last.at && last.blocks+blocks > u.believed/marksPerReach
}

// join makes room by joining the two neighbouring intervals with the fewest blocks: most have been used again since.
func (u *usage) join() {
	best := 0
	for i := range len(u.marks) - 1 {
		if u.marks[i].blocks+u.marks[i+1].blocks < u.marks[best].blocks+u.marks[best+1].blocks {
			best = i
		}
	}
	u.marks[best].blocks += u.marks[best+1].blocks
	u.marks = slices.Delete(u.marks, best+1, best+2)
}

// leave takes back blocks counted as last touched at the given time: they have been touched again.
func (u *usage) leave(at Time, blocks float64) {
	if i := u.interval(at); i >= 0 {
		u.marks[i].blocks = max(0, u.marks[i].blocks-blocks)
	}
}

// interval returns the number of the interval that a time falls into, -1 if it is older than all.
func (u *usage) interval(at Time) int {
	for i := len(u.marks) - 1; i >= 0; i-- {
		if at >= u.marks[i].at {
			return i
		}
	}
	return -1
}

// since returns how many distinct blocks have been touched since the given time.
func (u *usage) since(at Time) float64 {
	sum, end := 0.0, u.now
	for i := len(u.marks) - 1; i >= 0; i-- {
		m := u.marks[i]
		if at >= m.at {
			if at < end {
				sum += m.blocks * float64(end-at) / float64(end-m.at)
			}
			break
		}
		sum += m.blocks
		end = m.at
	}
	return sum
}

// span returns the horizon as limits keep it: the edge since which reach blocks have been touched, or an age.
func (u *usage) span() int64 {
	if u.believed == 0 {
		return u.horizon
	}
	sum, end := 0.0, u.now
	for i := len(u.marks) - 1; i >= 0; i-- {
		m := u.marks[i]
		if sum+m.blocks >= u.believed {
			return -int64(max(1, end-Time(float64(end-m.at)*(u.believed-sum)/m.blocks)))
		}
		sum += m.blocks
		end = m.at
	}
	// Not that many are remembered, because the cache has not been filled once: extrapolate.
	elapsed := float64(u.now - end)
	if elapsed < minRateMs || sum < 1 {
		return u.horizon
	}
	return -max(1, int64(u.now)-int64(min(elapsed*u.believed/sum, float64(maxHorizonMs))))
}

// evicted takes the evidence that a block was gone, age ms after its last touch and after displaced other blocks had been
// touched; horizon is what was believed.
func (u *usage) evicted(age int64, displaced float64, horizon int64) {
	switch {
	case u.taught && u.reach > 0:
		u.reach = max(1, u.reach+shrinkRate*min(0, displaced-u.reach))
		u.weight.add(u.now)
	case age >= horizon:
		return
	case displaced >= minDisplaced:
		u.reach = displaced
		u.weight.add(u.now)
	case u.taught:
		u.horizon = max(minHorizonMs, u.horizon+int64(shrinkRate*float64(age-u.horizon)))
	default:
		u.reach, u.horizon = 0, max(minHorizonMs, age)
	}
	u.taught = true
	u.combine()
}

// survived takes the evidence that a block was still there.
func (u *usage) survived(age int64, displaced float64, horizon int64) {
	switch {
	case u.reach > 0 && displaced > u.reach:
		u.reach += growRate * (displaced - u.reach)
		u.weight.add(u.now)
	case u.reach == 0 && age > horizon:
		u.horizon = min(maxHorizonMs, u.horizon+int64(growRate*float64(age-u.horizon)))
	case u.taught && u.reach > 0 && displaced > u.reach/2:
		u.weight.add(u.now) // it moves nothing, but says that the reach is no less
	default:
		return
	}
	u.taught = true
	u.combine()
}

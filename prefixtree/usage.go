package prefixtree

import "slices"

const (
	// Marks of a twentieth of an LRU distance cover three distances, the retention of facts.
	usageMarks       = 64
	marksPerDistance = 20

	minDisplaced = 8 // the least number of blocks that explains an eviction

	minRateMs = 1000 // a rate over a shorter time is noise
)

// learned is an LRU distance in blocks or, while that is 0, an age in ms.
type learned struct {
	distance float64
	horizon  int64
	taught   bool // by evidence, not only by configuration
	weight   weight
}

// usage counts one backend's blocks by time of last touch. It learns an LRU distance in blocks: the
// cache's capacity minus outputs and unseen traffic. The horizon follows from the distance and the
// marks. Not safe for concurrent use.
type usage struct {
	learned
	proof    proof
	peers    peerDistance
	believed float64 // own and peers' LRU distance combined
	now      Time
	marks    []usageMark // oldest first
}

type usageMark struct {
	at     Time
	blocks float64
}

func (u *usage) setCapacity(blocks float64) {
	if !u.taught {
		u.distance = blocks
		u.combine()
	}
}

func (u *usage) clear() { u.marks, u.proof = u.marks[:0], proof{} }

func (u *usage) forget(upTo Time) {
	u.marks = slices.DeleteFunc(u.marks, func(m usageMark) bool { return m.at <= upTo })
	u.proof = proof{}
}

func (u *usage) touch(at Time, blocks float64) {
	u.now = max(u.now, at)
	if i := u.interval(at); i >= 0 && (i < len(u.marks)-1 || !u.due(at, blocks)) {
		u.marks[i].blocks += blocks
		return
	} else if i < 0 && len(u.marks) > 0 {
		return // older than all intervals
	}
	if u.marks == nil {
		u.marks = make([]usageMark, 0, usageMarks)
	}
	if len(u.marks) == usageMarks {
		u.join()
	}
	u.marks = append(u.marks, usageMark{at, blocks})
}

func (u *usage) due(at Time, blocks float64) bool {
	last := u.marks[len(u.marks)-1]
	if u.believed == 0 {
		return int64(at-last.at) >= u.horizon/marksPerDistance
	}
	return at > last.at && last.blocks+blocks > u.believed/marksPerDistance
}

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

func (u *usage) leave(at Time, blocks float64) {
	if i := u.interval(at); i >= 0 {
		u.marks[i].blocks = max(0, u.marks[i].blocks-blocks)
	}
}

func (u *usage) interval(at Time) int {
	for i := len(u.marks) - 1; i >= 0; i-- {
		if at >= u.marks[i].at {
			return i
		}
	}
	return -1
}

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
	// The cache has not been filled once, so extrapolate.
	elapsed := float64(u.now - end)
	if elapsed < minRateMs || sum < 1 {
		return u.horizon
	}
	return -max(1, int64(u.now)-int64(min(elapsed*u.believed/sum, float64(maxHorizonMs))))
}

// evicted records a miss, age ms and displaced blocks after the last touch.
func (u *usage) evicted(age int64, displaced float64, horizon int64) {
	switch {
	case u.taught && u.distance > 0:
		u.distance = max(1, u.distance+shrinkRate*min(0, displaced-u.distance))
		u.weight.add(u.now)
	case age >= horizon:
		return
	case displaced >= minDisplaced:
		u.distance = displaced
		u.weight.add(u.now)
	case u.taught:
		u.horizon = max(minHorizonMs, u.horizon+int64(shrinkRate*float64(age-u.horizon)))
	default:
		u.distance, u.horizon = 0, max(minHorizonMs, age)
	}
	u.taught = true
	u.combine()
}

func (u *usage) survived(age int64, displaced float64, horizon int64) {
	switch {
	case u.distance > 0 && displaced > u.distance:
		u.distance += growRate * (displaced - u.distance)
		u.weight.add(u.now)
	case u.distance == 0 && age > horizon:
		u.horizon = min(maxHorizonMs, u.horizon+int64(growRate*float64(age-u.horizon)))
	case u.taught && u.distance > 0 && displaced > u.distance/2:
		u.weight.add(u.now) // confirms the LRU distance without moving it
	default:
		return
	}
	u.taught = true
	u.combine()
}

package prefixtree

// trailSteps bounds a Trail; most have one step per turn of the conversation.
const trailSteps = 16

// Trail is what was believed about a chain on one backend before Record: the time of last touch as
// a falling step function of depth. A missing block gets the time of the next known block below.
// Beyond 16 steps it is coarsened towards older times. The zero value is empty. Not safe for
// concurrent use.
type Trail struct {
	recorded Time
	settled  Time // later facts were left as they were
	n        int
	steps    [trailSteps]trailStep
	fresh    int
	expected float32
}

type trailStep struct {
	depth     int
	at        Time
	displaced float64 // distinct blocks of the backend touched since
}

func (tr *Trail) reset() {
	tr.recorded, tr.settled, tr.n, tr.fresh, tr.expected = 0, 0, 0, 0, 0
}

// push adds the block at depth, deeper than all before.
func (tr *Trail) push(depth int, at Time) {
	if tr.n > 0 && tr.steps[tr.n-1].at == at {
		tr.steps[tr.n-1].depth = depth
		return
	}
	for tr.n > 0 && tr.steps[tr.n-1].at <= at {
		tr.n--
	}
	if tr.n == trailSteps {
		tr.coarsen()
	}
	tr.steps[tr.n] = trailStep{depth: depth, at: at}
	tr.n++
}

func (tr *Trail) coarsen() {
	best := 0
	for i := 1; i+1 < tr.n; i++ {
		if tr.steps[i].at-tr.steps[i+1].at < tr.steps[best].at-tr.steps[best+1].at {
			best = i
		}
	}
	copy(tr.steps[best:], tr.steps[best+1:tr.n]) // the lower, older step absorbs the upper one
	tr.n--
}

func (tr *Trail) finish(now Time, horizon int64) {
	for i := range tr.n {
		if int64(now-tr.steps[i].at) <= horizon {
			tr.fresh = tr.steps[i].depth
		}
	}
	tr.expected = float32(tr.fresh)
	if tr.n > 0 {
		last := tr.steps[tr.n-1]
		tr.expected += float32(last.depth-tr.fresh) * residency(int64(now-last.at), horizon)
	}
}

func (tr *Trail) depth() int {
	if tr.n == 0 {
		return 0
	}
	return tr.steps[tr.n-1].depth
}

func (tr *Trail) at(depth int) Time { return tr.step(depth).at }

func (tr *Trail) step(depth int) trailStep {
	for _, step := range tr.steps[:tr.n] {
		if depth <= step.depth {
			return step
		}
	}
	return trailStep{}
}

// Blocks returns the number of leading blocks with a fact.
func (tr *Trail) Blocks() int { return tr.depth() }

// Fresh returns the number of leading blocks touched within the horizon.
func (tr *Trail) Fresh() int { return tr.fresh }

// Expected returns the blocks expected in the cache.
func (tr *Trail) Expected() float32 { return tr.expected }

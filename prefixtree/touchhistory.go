package prefixtree

const maxTouchSteps = 16 // most histories have one step per turn of the conversation

// TouchHistory is what was believed about a chain on one backend before Record: the time of last
// touch as a falling step function of depth, coarsened beyond 16 steps. A missing block gets the
// time of the next known one below. Not safe for concurrent use.
type TouchHistory struct {
	recorded Time
	settled  Time // later facts were left as they were
	n        int
	steps    [maxTouchSteps]touchStep
}

type touchStep struct {
	depth     int
	at        Time
	displaced float64 // distinct blocks of the backend touched since
}

func (tr *TouchHistory) reset() {
	tr.recorded, tr.settled, tr.n = 0, 0, 0
}

// push adds the block at depth, deeper than all before.
func (tr *TouchHistory) push(depth int, at Time) {
	if tr.n > 0 && tr.steps[tr.n-1].at == at {
		tr.steps[tr.n-1].depth = depth
		return
	}
	for tr.n > 0 && tr.steps[tr.n-1].at <= at {
		tr.n--
	}
	if tr.n == maxTouchSteps {
		tr.coarsen()
	}
	tr.steps[tr.n] = touchStep{depth: depth, at: at}
	tr.n++
}

func (tr *TouchHistory) coarsen() {
	best := 0
	for i := 1; i+1 < tr.n; i++ {
		if tr.steps[i].at-tr.steps[i+1].at < tr.steps[best].at-tr.steps[best+1].at {
			best = i
		}
	}
	copy(tr.steps[best:], tr.steps[best+1:tr.n]) // the lower, older step absorbs the upper one
	tr.n--
}

func (tr *TouchHistory) depth() int {
	if tr.n == 0 {
		return 0
	}
	return tr.steps[tr.n-1].depth
}

func (tr *TouchHistory) at(depth int) Time { return tr.step(depth).at }

func (tr *TouchHistory) step(depth int) touchStep {
	for _, step := range tr.steps[:tr.n] {
		if depth <= step.depth {
			return step
		}
	}
	return touchStep{}
}

package prefixtree

// trailSteps bounds a Trail. A conversation's prefix was touched once per turn that ended on it, so most trails have a
// handful of steps.
const trailSteps = 16

// Trail is what was believed about one chain on one backend just before Record touched it: the time of last touch as a
// step function of depth, root first, strictly falling. Where facts had holes, a block counts as touched when the deepest
// block below it was, as it must have been. More than 16 steps are coarsened towards the older time, for what is then
// misjudged is a longer horizon, the cheap error. A plain value, reusable, not safe for concurrent use; the zero value
// is a trail of nothing.
type Trail struct {
	recorded Time
	settled  Time // facts later than this were left as they were
	n        int
	steps    [trailSteps]trailStep
	fresh    int
	expected float32
}

type trailStep struct {
	depth     int // the last block of the step; the first is one below the step before
	at        Time
	displaced float64 // distinct blocks of the backend touched since
}

func (tr *Trail) reset() {
	tr.recorded, tr.settled, tr.n, tr.fresh, tr.expected = 0, 0, 0, 0, 0
}

// push notes that the block at depth, deeper than all before, was last touched at the given time.
func (tr *Trail) push(depth int, at Time) {
	if tr.n > 0 && tr.steps[tr.n-1].at == at { // mostly
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

// coarsen joins the two neighbouring steps that are closest in time.
func (tr *Trail) coarsen() {
	best := 0
	for i := 1; i+1 < tr.n; i++ {
		if tr.steps[i].at-tr.steps[i+1].at < tr.steps[best].at-tr.steps[best+1].at {
			best = i
		}
	}
	copy(tr.steps[best:], tr.steps[best+1:tr.n]) // the lower, older step now starts where the upper one did
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

// at returns when the block at depth was last touched, 0 if it was not known.
func (tr *Trail) at(depth int) Time { return tr.step(depth).at }

// step returns the step that the block at depth lies on, zero if there is none.
func (tr *Trail) step(depth int) trailStep {
	for _, step := range tr.steps[:tr.n] {
		if depth <= step.depth {
			return step
		}
	}
	return trailStep{}
}

// Blocks returns the leading blocks a fact was retained for.
func (tr *Trail) Blocks() int { return tr.depth() }

// Fresh returns the leading blocks touched within the horizon.
func (tr *Trail) Fresh() int { return tr.fresh }

// Expected returns the blocks predicted resident when Record was called: Fresh, and the rest weighted by the probability
// of its age.
func (tr *Trail) Expected() float32 { return tr.expected }

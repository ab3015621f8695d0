package family

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"grapevine.example/chaos/workload"
)

const (
	keyTokens    = 128 // of one key; a block of the routers' trees
	decodeStep   = 20 * time.Millisecond
	nominalStart = 500 * time.Millisecond // first token without a queue, for the expected times below

	burstFactor = 10
	burstLength = 10 * time.Second
	burstEvery  = 100 * time.Second // about one burst in this time
	swing       = 0.6               // of the daily rate, around its mean
	subAgents   = 4                 // at most, at once
	subTurns    = 4
	longest     = 4 // times the mean length
)

// call is a call of the script with what the plan needs.
type call struct {
	workload.Call
	expected time.Duration // arrival if nothing queues
	model    int
}

func (c *call) output() int { return c.Answered.Tokens() - c.Prompt.Tokens() }

func (c *call) service() time.Duration {
	return nominalStart + time.Duration(c.output())*decodeStep
}

// author writes the calls of a draw.
type author struct {
	*Draw
	rng      *rand.Rand
	bursts   []time.Duration
	pools    [][]float64 // by traffic: popularity of the shared texts, summed up
	calls    []call
	sessions int
	texts    uint64 // number of own texts so far
}

// write writes sessions until as many calls as wanted are expected after the warm-up. A session's
// model is drawn by weight.
func (d *Draw) write(models []float64) []call {
	a := &author{Draw: d, rng: d.random(streamCalls)}
	for n := max(1, int(d.length()/burstEvery)); len(a.bursts) < n; {
		room := (d.length() - d.warmup() - burstLength) / time.Duration(n)
		a.bursts = append(a.bursts, d.warmup()+time.Duration(float64(len(a.bursts))+a.rng.Float64())*room)
	}
	for i := range d.Traffic {
		a.pools = append(a.pools, popularity(d.Traffic[i].Pool, d.Traffic[i].Skew))
	}
	for measured := 0; measured < d.Requests; {
		from := len(a.calls)
		a.session(pick(a.rng, models))
		for i := range a.calls[from:] {
			if a.calls[from+i].expected >= d.warmup() {
				measured++
			}
		}
	}
	return a.calls
}

func popularity(pool int, skew float64) []float64 {
	sums, sum := make([]float64, pool), 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -skew)
		sums[i] = sum
	}
	return sums
}

// pick returns an index by weight.
func pick(rng *rand.Rand, weights []float64) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := rng.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

// start draws when a session starts.
func (a *author) start() time.Duration {
	length := float64(a.length())
	switch a.Arrivals {
	case "bursts":
		more := (burstFactor - 1) * float64(burstLength)
		if at := a.rng.Float64() * (length + more*float64(len(a.bursts))); at >= length {
			return a.bursts[int((at-length)/more)] + time.Duration(a.rng.Float64()*float64(burstLength))
		}
	case "daily": // from the least to the least
		for {
			u := a.rng.Float64()
			if a.rng.Float64()*(1+swing) < 1-swing*math.Cos(2*math.Pi*u) {
				return time.Duration(u * length)
			}
		}
	}
	return time.Duration(a.rng.Float64() * length)
}

// tokens draws a length around a mean.
func tokens(rng *rand.Rand, mean int) int {
	const sigma = 0.6
	if mean == 0 {
		return 0
	}
	x := math.Exp(sigma*rng.NormFloat64() - sigma*sigma/2)
	return max(1, int(float64(mean)*min(x, longest)))
}

// Names of texts: own ones are numbered.
const (
	sharedText = 1 << 62
	commonText = 1 << 61
)

func (a *author) own() uint64 {
	a.texts++
	return a.texts
}

func (a *author) session(model int) {
	shares := make([]float64, len(a.Traffic))
	for i := range shares {
		shares[i] = a.Traffic[i].Share
	}
	kind := pick(a.rng, shares)
	t := &a.Traffic[kind]
	c := call{model: model}
	c.After, c.At, c.Session, c.Turn = -1, a.start(), -1, 1
	c.NonStreaming = a.rng.Float64() >= a.Streamed
	if t.Turns > 1 {
		c.Session = a.sessions
		a.sessions++
	}
	c.Prompt = workload.NewContent(a.Seed<<8|uint64(model), keyTokens)
	c.Prompt.Add(commonText|uint64(kind), t.Common)
	if t.Pool > 0 {
		item := sort.SearchFloat64s(a.pools[kind], a.rng.Float64()*a.pools[kind][t.Pool-1])
		length := tokens(rand.New(rand.NewPCG(a.Seed, sharedText|uint64(kind)<<32|uint64(item))), t.Shared)
		c.Prompt.Add(sharedText|uint64(kind)<<32|uint64(item), length)
	}
	c.Prompt.Add(a.own(), tokens(a.rng, t.Own))
	c.expected = c.At
	a.turns(t, c, a.geometric(t.Turns), t.Branches)
}

func (a *author) geometric(mean float64) int {
	n := 1
	for n < int(longest*mean) && a.rng.Float64() < 1-1/mean {
		n++
	}
	return n
}

// turns writes a call and those that follow it, and returns the index of the last one written. A turn
// may start sub-agents, which share its prefix and run side by side; the next turn waits for the one
// that is written last, and not for the others.
func (a *author) turns(t *Traffic, c call, n int, branches float64) (last int) {
	for {
		c.Answered = c.Prompt
		c.Answered.Add(a.own(), tokens(a.rng, t.Output))
		if c.expected >= a.length() {
			return max(c.After, 0)
		}
		last = len(a.calls)
		a.calls = append(a.calls, c)
		if n--; n == 0 {
			return last
		}
		before := last
		if a.rng.Float64() < branches {
			for range 1 + a.rng.IntN(subAgents) {
				before = a.turns(t, a.next(t, last, c, t.Own), 1+a.rng.IntN(subTurns), 0)
			}
		}
		c = a.next(t, before, c, t.Suffix)
	}
}

// next is the call that extends c by a text, after the call of that index.
func (a *author) next(t *Traffic, after int, c call, text int) call {
	c.After, c.At = after, time.Duration(a.rng.ExpFloat64()*float64(t.ThinkMS))*time.Millisecond
	c.expected = a.calls[after].expected + a.calls[after].service() + c.At
	c.Turn++
	c.Prompt = c.Answered
	c.Prompt.Add(a.own(), tokens(a.rng, text))
	return c
}

// byExpected returns the calls in order of their expected arrival.
func byExpected(calls []call) []*call {
	out := make([]*call, len(calls))
	for i := range calls {
		out[i] = &calls[i]
	}
	slices.SortStableFunc(out, func(a, b *call) int { return cmp.Compare(a.expected, b.expected) })
	return out
}

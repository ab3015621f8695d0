package queue

import (
	"math"
	"time"
)

const (
	// drainMemory is over how long the rate is measured.
	drainMemory = 10 * time.Second
	// maxExpect bounds estimates, which a rate of almost nothing would make absurd.
	maxExpect = 10 * time.Minute
)

// drain measures how much work leaves the queue per second while requests wait.
type drain struct {
	tokens, seconds float64 // decayed sums
	since           time.Duration
	running         bool
}

func (d *drain) busy(now time.Duration) {
	if !d.running {
		d.running, d.since = true, now
	}
}

func (d *drain) idle(now time.Duration) {
	d.pass(now)
	d.running = false
}

func (d *drain) pass(now time.Duration) {
	if !d.running || now <= d.since {
		return
	}
	passed := (now - d.since).Seconds()
	fade := math.Exp(-passed / drainMemory.Seconds())
	d.tokens *= fade
	d.seconds = d.seconds*fade + passed
	d.since = now
}

func (d *drain) took(cost float64, now time.Duration) {
	d.pass(now)
	d.tokens += cost
}

// rate returns tokens per second; 0 if not enough is known.
func (d *drain) rate() float64 {
	if d.seconds <= 0 {
		return 0
	}
	return d.tokens / d.seconds
}

// Expect estimates how long w would wait if it came now: for what is waiting with higher priorities, and
// for what its own client and, in proportion to their weights, the others have waiting with its own.
func (q *Queue) Expect(w *Waiter, now time.Duration) time.Duration {
	q.drain.pass(now)
	rate := q.drain.rate()
	l := q.lanes[w.Lane]
	if l == nil || rate <= 0 {
		return 0
	}
	own, weight := w.cost(), w.Weight
	b := &l.bands[w.Priority]
	if f := b.flows[w.Client]; f != nil {
		own += f.work
	}
	ahead := own
	for _, f := range b.order {
		if f.client != w.Client {
			ahead += min(f.work, own*f.weight/weight)
		}
	}
	above, total := 0.0, w.cost()
	for p := range l.bands {
		if p > int(w.Priority) {
			above += l.bands[p].work
		}
		total += l.bands[p].work
	}
	// Higher priorities leave it a share.
	ahead = min(ahead+above, ahead/leastShare)
	return seconds(min(ahead, total) / rate)
}

// Backlog estimates how long the work of all waiting requests takes.
func (q *Queue) Backlog(now time.Duration) time.Duration {
	q.drain.pass(now)
	rate := q.drain.rate()
	if rate <= 0 {
		return 0
	}
	return seconds(q.all.work / rate)
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, maxExpect.Seconds()) * float64(time.Second))
}

// outputs learns how many tokens a client's answers have.
type outputs struct {
	byClient map[string]float64
	all      float64 // mean of all clients'; 0: nothing known
}

const (
	outputsKept   = 10_000 // clients
	outputSmooth  = 0.02
	unknownOutput = 256 // tokens
)

// Learn takes the output tokens of a client's answer.
func (q *Queue) Learn(client string, tokens int) {
	o := &q.outputs
	if o.byClient == nil {
		o.byClient = make(map[string]float64)
	}
	t := float64(tokens)
	if o.all == 0 {
		o.all = t
	}
	o.all += outputSmooth * (t - o.all)
	mean, known := o.byClient[client]
	if !known {
		if len(o.byClient) >= outputsKept {
			return
		}
		mean = t
	}
	o.byClient[client] = mean + outputSmooth*(t-mean)
}

// Output returns the output tokens to expect of a client's request, of which limit is the most that it
// asks for; 0: no limit.
func (q *Queue) Output(client string, limit int) float64 {
	mean, known := q.outputs.byClient[client]
	if !known {
		if mean = q.outputs.all; mean == 0 {
			mean = unknownOutput
		}
	}
	if limit > 0 {
		mean = min(mean, float64(limit))
	}
	return mean
}

// deadlines is a heap by until.
type deadlines []*Waiter

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].until < d[j].until }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}
func (d *deadlines) Push(x any) {
	w := x.(*Waiter)
	w.place = len(*d)
	*d = append(*d, w)
}
func (d *deadlines) Pop() any {
	old := *d
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return w
}

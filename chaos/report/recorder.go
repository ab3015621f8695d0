package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Sample is one request that ended.
type Sample struct {
	At      time.Duration // due time, since the start of the run
	End     time.Duration
	Session int // -1: none
	Turn    int // from 1; 0: none
	Backend int // dense from 0; -1: unknown

	// Tokens are the engine's; -1: not reported.
	PromptTokens int
	CachedTokens int
	OutputTokens int
	// Predicted is how many cached prompt tokens the router expected; -1: unknown.
	Predicted int

	TTFT     time.Duration // from At to the first token; negative: none came
	Queue    time.Duration // part of TTFT before the engine began; 0 if not measured
	Overhead time.Duration // time in the router; negative: not measured
	Rung     string        // "": unknown
	Failed   bool
	// Cut is a failure that no router could prevent; no error.
	Cut bool
	// Refused is a failure for want of a place or of time in a queue; no error.
	Refused bool
	Client  string // "": all requests are one client's
}

// Recorder keeps all samples for exact quantiles. Safe for concurrent use.
type Recorder struct {
	mu      sync.Mutex
	samples []Sample
}

func (r *Recorder) Add(s Sample) {
	r.mu.Lock()
	r.samples = append(r.samples, s)
	r.mu.Unlock()
}

type Setting struct {
	Policy, Workload string
	Nodes            int
	Backends         int // number of backends, busy or not
	Seed             uint64
	Speed            float64
	// Warmup excludes requests due before it. WarmPrediction does so for prediction errors alone,
	// if later, because an empty cache is easy to predict.
	Warmup, WarmPrediction time.Duration
	// Busy is each backend's share of time with prompt tokens to compute; may be nil.
	Busy   []float64
	Gossip Gossip
	Hot    *Hot
	// Until is when arrivals end; goodput counts what is served before it.
	Until time.Duration
}

const buckets = 60

// Report summarises the samples, in any order, and keeps them.
func (r *Recorder) Report(set Setting) Report {
	r.mu.Lock()
	all := slices.Clone(r.samples)
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Turn, b.Turn),
			cmp.Compare(a.End, b.End), cmp.Compare(a.Backend, b.Backend))
	})
	warm, _ := slices.BinarySearchFunc(all, set.Warmup, func(s Sample, at time.Duration) int { return cmp.Compare(s.At, at) })
	rep := Report{
		Policy: set.Policy, Workload: set.Workload, Nodes: set.Nodes, Seed: set.Seed,
		Gossip: Gossip{BytesPerSPerNode: round(set.Gossip.BytesPerSPerNode), Convergence: set.Gossip.Convergence},
		Hot:    set.Hot, Speed: set.Speed, WarmupS: set.Warmup.Seconds(), WarmupRequests: warm, Rungs: make(map[string]int),
	}
	measured := all[warm:]
	rep.Requests = len(measured)
	rep.count(measured, set)
	rep.follow(all, set.Warmup)
	rep.latencies(measured)
	rep.predictions(measured, set.WarmPrediction)
	rep.series(all)
	rep.Goodput = goodput(all, set)
	rep.clients(measured, all, set)
	return rep
}

func (rep *Report) count(measured []Sample, set Setting) {
	rep.Backends = make([]Backend, set.Backends)
	for i := range rep.Backends {
		rep.Backends[i].ID = i
		if i < len(set.Busy) {
			rep.Backends[i].Utilization = round(set.Busy[i])
			rep.Utilization += set.Busy[i] / float64(len(set.Busy))
		}
	}
	rep.Utilization = round(rep.Utilization)
	from, to := set.Warmup, time.Duration(0)
	if len(measured) > 0 && from == 0 {
		from = measured[0].At
	}
	for i := range measured {
		s := &measured[i]
		to = max(to, s.End)
		if s.Rung != "" {
			rep.Rungs[s.Rung]++
		}
		switch {
		case s.Failed && s.Cut:
			rep.Cut++
		case s.Refused:
			rep.Refused++
		case s.Failed:
			rep.Errors++
		}
		var b *Backend
		if s.Backend >= 0 && s.Backend < len(rep.Backends) {
			b = &rep.Backends[s.Backend]
			b.Requests++
		}
		if !s.counted() {
			continue
		}
		rep.PromptTokens += int64(s.PromptTokens)
		rep.CachedTokens += int64(max(0, s.CachedTokens))
		rep.OutputTokens += int64(max(0, s.OutputTokens))
		if b != nil {
			b.PromptTokens += int64(s.PromptTokens)
			b.CachedTokens += int64(max(0, s.CachedTokens))
		}
	}
	rep.HitRate = ratio(float64(rep.CachedTokens), float64(rep.PromptTokens))
	rep.DurationS = round(max(0, to-from).Seconds())
	rep.LoadCov = loadCov(rep.Backends)
}

func (s *Sample) counted() bool { return !s.Failed && s.PromptTokens >= 0 }

type tally struct{ prompt, cached int64 }

func (t *tally) add(s *Sample) {
	if s.counted() {
		t.prompt += int64(s.PromptTokens)
		t.cached += int64(max(0, s.CachedTokens))
	}
}

func (t tally) hitRate() float64 { return ratio(float64(t.cached), float64(t.prompt)) }

func loadCov(bs []Backend) float64 {
	if len(bs) == 0 {
		return 0
	}
	var sum, square float64
	for _, b := range bs {
		sum += float64(b.Requests)
	}
	mean := sum / float64(len(bs))
	for _, b := range bs {
		d := float64(b.Requests) - mean
		square += d * d
	}
	return ratio(math.Sqrt(square/float64(len(bs))), mean)
}

func (rep *Report) follow(all []Sample, warmup time.Duration) {
	type place struct{ session, turn int }
	backend := make(map[place]int)
	for i := range all {
		if s := &all[i]; s.Session >= 0 && s.Backend >= 0 {
			backend[place{s.Session, s.Turn}] = s.Backend
		}
	}
	var tokens tally
	var same, known int
	for i := range all {
		s := &all[i]
		if s.At < warmup || s.Turn < 2 {
			continue
		}
		rep.FollowupRequests++
		tokens.add(s)
		if s.Session < 0 || s.Backend < 0 {
			continue
		}
		if before, ok := backend[place{s.Session, s.Turn - 1}]; ok {
			known++
			if before == s.Backend {
				same++
			}
		}
	}
	rep.FollowupCached = tokens.hitRate()
	rep.FollowupSameBackend = ratio(float64(same), float64(known))
}

func (rep *Report) latencies(measured []Sample) {
	var ttft, e2e, queue, overhead []float64
	for i := range measured {
		s := &measured[i]
		if s.Overhead >= 0 {
			overhead = append(overhead, float64(s.Overhead)/float64(time.Microsecond))
		}
		if s.Failed {
			continue
		}
		if s.TTFT >= 0 {
			ttft = append(ttft, Milliseconds(s.TTFT))
			queue = append(queue, Milliseconds(s.Queue))
		}
		e2e = append(e2e, Milliseconds(s.End-s.At))
	}
	rep.TTFT, rep.E2E = Summarise(ttft), Summarise(e2e)
	rep.Queue, rep.RouterOverhead = Summarise(queue), Summarise(overhead)
}

// goodput returns the prompt and output tokens of requests that ended within the measured time, per second.
func goodput(all []Sample, set Setting) float64 {
	tokens := 0
	for i := range all {
		if s := &all[i]; s.counted() && s.End >= set.Warmup && s.End < set.Until {
			tokens += s.PromptTokens + max(0, s.OutputTokens)
		}
	}
	return ratio(float64(tokens), (set.Until - set.Warmup).Seconds())
}

func (rep *Report) clients(measured, all []Sample, set Setting) {
	names := map[string]bool{}
	for i := range measured {
		names[measured[i].Client] = true
	}
	if names[""] {
		return
	}
	of := func(list []Sample, name string) (own []Sample) {
		for i := range list {
			if list[i].Client == name {
				own = append(own, list[i])
			}
		}
		return own
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		part, own := Report{Rungs: map[string]int{}}, of(measured, name)
		part.count(own, set)
		part.latencies(own)
		rep.Clients = append(rep.Clients, Client{
			Name: name, Requests: len(own), Refused: part.Refused, HitRate: part.HitRate, TTFT: part.TTFT, Queue: part.Queue,
			Goodput: goodput(of(all, name), set),
		})
	}
}

func (rep *Report) predictions(measured []Sample, warm time.Duration) {
	var miss []float64
	var prompt, sum, bias float64
	for i := range measured {
		s := &measured[i]
		if s.At < warm || !s.counted() || s.Predicted < 0 || s.CachedTokens < 0 {
			continue
		}
		d := float64(s.Predicted - s.CachedTokens)
		miss = append(miss, math.Abs(d))
		sum += math.Abs(d)
		bias += d
		prompt += float64(s.PromptTokens)
	}
	if len(miss) == 0 {
		return
	}
	slices.Sort(miss)
	rep.Prediction = PredictionSummary{
		Mean: round(sum / float64(len(miss))), P95: round(Rank(miss, 0.95)),
		Share: ratio(sum, prompt), Bias: ratio(bias, prompt), Requests: len(miss),
	}
}

func (rep *Report) series(all []Sample) {
	if len(all) == 0 {
		return
	}
	width := (all[len(all)-1].At.Seconds() + 1e-9) / buckets
	rep.Series = make([]Bucket, buckets)
	i := 0
	for n := range rep.Series {
		b := &rep.Series[n]
		b.From, b.To = float64(n)*width, float64(n+1)*width
		var ttft []float64
		var tokens tally
		for ; i < len(all) && (all[i].At.Seconds() < b.To || n == buckets-1); i++ {
			s := &all[i]
			b.Requests++
			tokens.add(s)
			if !s.Failed && s.TTFT >= 0 {
				ttft = append(ttft, Milliseconds(s.TTFT))
			}
		}
		b.HitRate, b.TTFT = tokens.hitRate(), Summarise(ttft)
	}
}

// Milliseconds is the unit of the latencies of a report.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Summarise sorts v.
func Summarise(v []float64) Quantiles {
	if len(v) == 0 {
		return Quantiles{}
	}
	slices.Sort(v)
	var sum float64
	for _, x := range v {
		sum += x
	}
	return Quantiles{Mean: round(sum / float64(len(v))), P50: round(Rank(v, 0.5)), P90: round(Rank(v, 0.9)), P99: round(Rank(v, 0.99))}
}

// Rank is the q-quantile of sorted values, of which there is at least one, by nearest rank.
func Rank(v []float64, q float64) float64 {
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return round(a / b)
}

func round(x float64) float64 { return math.Round(x*1e6) / 1e6 }

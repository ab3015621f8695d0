// Package doctor finds where the prompts of one application diverge too early: it keeps sketches (hashes and lengths, no text) of a
// few requests of each application, compares them, and says what a mended prompt would save. See DESIGN.md.
package doctor

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// Bounds of a doctor's memory: 5 MiB.
const (
	// maxApplications are kept; beyond, the one without a sample for the longest time gives way.
	maxApplications = 32
	// samplesKept of an application are spread over the last half hour.
	samplesKept = 48
	halfHour    = 30 * time.Minute

	maxName = 128 // bytes of a model's name that a client chose

	// maxOneIn ends the adaptation: a request in so many is sampled.
	maxOneIn = 1 << 20
)

// Doctor samples the requests of one node. Safe for concurrent use. The zero value samples nothing.
type Doctor struct {
	perSecond atomic.Int32
	window    time.Duration // samples older than that are dropped
	seed      uint64
	oneIn     atomic.Uint32 // 0: off

	mu           sync.Mutex
	taken        int // since adapted
	adapted      time.Time
	applications map[Application]*application
	peers        map[string][]Diagnosis // of other nodes

	section   []byte // see Section
	sectionAt time.Time
}

// Application is a group of requests whose prompts probably come from the same program.
type Application struct {
	Client string `json:"client,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Model  string `json:"model"`
}

// compareTo orders by model, client and rule.
func (a Application) compareTo(b Application) int {
	for _, c := range []int{strings.Compare(a.Model, b.Model), strings.Compare(a.Client, b.Client), strings.Compare(a.Rule, b.Rule)} {
		if c != 0 {
			return c
		}
	}
	return 0
}

type application struct {
	samples     []sample // by time
	now, before tally    // of this window and the one before
}

// tally is what requests of an application had, estimated from the samples.
type tally struct {
	from                     time.Time
	requests, tokens, cached float64
}

func (t *tally) add(o *tally) {
	t.requests += o.requests
	t.tokens += o.tokens
	t.cached += o.cached
}

// sample is a request.
type sample struct {
	at     time.Time
	sketch *prompt.Sketch
	tokens float64 // of the prompt
	cached float64 // tokens that the engine had
	rate   float64 // prefill tokens/s of the engine
}

// New returns a doctor that samples up to perSecond requests a second, fewer if there are fewer; 0: none.
func New(perSecond int) *Doctor {
	d := &Doctor{window: halfHour, seed: rand.Uint64(), applications: make(map[Application]*application), peers: make(map[string][]Diagnosis)}
	d.SetRate(perSecond)
	return d
}

// SetRate changes how many requests a second the doctor samples, as New says. It keeps its samples.
func (d *Doctor) SetRate(perSecond int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.perSecond.Store(int32(perSecond))
	if perSecond == 0 {
		d.oneIn.Store(0)
	} else if d.oneIn.Load() == 0 {
		d.oneIn.Store(1)
	}
}

// Rate returns how many requests a second the doctor samples at most; 0: none.
func (d *Doctor) Rate() int { return int(d.perSecond.Load()) }

// Sketch returns a sketch to be filled, for one request in some, and nil for all others. It takes a lock only for those.
func (d *Doctor) Sketch() *prompt.Sketch {
	n := d.oneIn.Load()
	if n == 0 || n > 1 && rand.Uint32()&(n-1) != 0 {
		return nil
	}
	d.adapt(1, time.Now())
	return &prompt.Sketch{Seed: d.seed}
}

// Tick adapts the share of sampled requests when there are too few; to be called every few seconds.
func (d *Doctor) Tick(now time.Time) {
	if d.Rate() > 0 {
		d.adapt(0, now)
	}
}

// adapt counts new samples and moves oneIn by powers of two, so that a second has at most perSecond samples, and a fourth of them if there are
// as many requests. A burst doubles it at once.
func (d *Doctor) adapt(samples int, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken += samples
	n, perSecond, passed := d.oneIn.Load(), d.Rate(), now.Sub(d.adapted).Seconds()
	switch {
	case n == 0: // off meanwhile
	case d.taken > perSecond && passed < 1:
		n = min(2*n, maxOneIn)
	case passed < 1:
		return
	default:
		for room := float64(perSecond) * min(passed, maxOneIn); n > 1 && 4*float64(max(d.taken, 1)) < room; room /= 2 {
			n /= 2
		}
	}
	d.oneIn.Store(n)
	d.taken, d.adapted = 0, now
}

// Observe keeps the sketch of a request that was answered. r is valid during the call only, its sketch for good; rate is the prefill rate in
// tokens/s of the engine that computed the prompt.
func (d *Doctor) Observe(r *proxy.Record, by *policy.Decision, rate float64, now time.Time) {
	if r.Sketch == nil || by == nil || r.Status >= 400 || r.Broken {
		return
	}
	s := sample{at: now, sketch: r.Sketch, tokens: float64(r.PromptTokens), cached: float64(r.CachedTokens), rate: rate}
	if r.PromptTokens <= 0 {
		s.tokens = float64(by.PromptTokens)
	}
	if r.CachedTokens < 0 {
		s.cached = float64(by.PredictedTokens)
	}
	key := Application{Client: r.Client, Rule: by.Rule, Model: strings.ToValidUTF8(string(r.Model[:min(len(r.Model), maxName)]), "")}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(key, s, float64(d.oneIn.Load()))
}

// add keeps a sample that stands for weight requests.
func (d *Doctor) add(key Application, s sample, weight float64) {
	a := d.applications[key]
	if a == nil {
		if len(d.applications) == maxApplications {
			d.makeRoom()
		}
		a = &application{now: tally{from: s.at}}
		d.applications[key] = a
	}
	if age := s.at.Sub(a.now.from); age >= d.window {
		if a.before = a.now; age >= 2*d.window {
			a.before = tally{}
		}
		a.now = tally{from: s.at}
	}
	a.now.add(&tally{requests: weight, tokens: weight * s.tokens, cached: weight * s.cached})
	s.sketch.Chunks = slices.Clone(s.sketch.Chunks) // without room to grow
	a.keep(s, d.window)
}

func (d *Doctor) makeRoom() {
	var oldest Application
	var at time.Time
	for key, a := range d.applications {
		if last := a.samples[len(a.samples)-1].at; at.IsZero() || last.Before(at) {
			oldest, at = key, last
		}
	}
	delete(d.applications, oldest)
}

// keep drops what is older than window or else, of too many, the sample whose neighbours are closest in time, so that the rest is spread
// over the window.
func (a *application) keep(s sample, window time.Duration) {
	a.samples = append(a.samples, s)
	a.expire(s.at, window)
	if n := len(a.samples); n > samplesKept {
		crowded, gap := 1, window
		for i := 1; i < n-1; i++ {
			if g := a.samples[i+1].at.Sub(a.samples[i-1].at); g < gap {
				crowded, gap = i, g
			}
		}
		a.samples = slices.Delete(a.samples, crowded, crowded+1)
	}
}

func (a *application) expire(now time.Time, window time.Duration) {
	a.samples = slices.DeleteFunc(a.samples, func(s sample) bool { return now.Sub(s.at) >= window })
}

// Report diagnoses the requests of the last half hour, with what peers report of theirs.
func (d *Doctor) Report(now time.Time) *Report {
	r := &Report{Per: "hour", Sampling: d.Rate() > 0, Applications: []Diagnosis{}}
	all, reporting := d.merged(d.own(now))
	r.Applications, r.Reporting = append(r.Applications, all...), reporting
	sortDiagnoses(r.Applications)
	return r
}

// own diagnoses this node's requests.
func (d *Doctor) own(now time.Time) (list []Diagnosis) {
	for _, c := range d.copies(now) {
		list = append(list, diagnose(c.key, c.samples, c.tally, c.span))
	}
	return list
}

type copied struct {
	key     Application
	samples []sample
	tally   tally
	span    time.Duration
}

// copies keeps the lock only while it copies; sketches do not change.
func (d *Doctor) copies(now time.Time) (list []copied) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, a := range d.applications {
		a.expire(now, d.window)
		if len(a.samples) == 0 {
			delete(d.applications, key)
			continue
		}
		c := copied{key: key, samples: slices.Clone(a.samples), tally: a.now, span: max(now.Sub(a.now.from), time.Second)}
		if !a.before.from.IsZero() {
			c.tally.add(&a.before)
			c.span = now.Sub(a.before.from)
		}
		list = append(list, c)
	}
	return list
}

package engine

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var errStopped = errors.New("engine: stopped")

var errBusy = errors.New("engine: waiting queue is full")

var errTooLarge = errors.New("engine: larger than the KV memory")

// maxWaiting bounds the jobs in the waiting queue; more get 503.
const maxWaiting = 100_000

// driver runs a Model on the wall clock. One goroutine owns the model; other goroutines access it
// through do.
type driver struct {
	model      *Model
	began      time.Time
	ops        chan func(now time.Duration)
	quit, done chan struct{}
	stopOnce   sync.Once
	active     atomic.Int64 // requests

	ttft, latency prometheus.Histogram
}

func newDriver(m *Model) *driver {
	d := &driver{
		model: m, began: time.Now(),
		ops: make(chan func(time.Duration)), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go d.run()
	return d
}

func (d *driver) run() {
	defer close(d.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if at, ok := d.model.Next(); ok {
			wait = max(at-time.Since(d.began), 0)
		}
		timer.Reset(wait)
		select {
		case op := <-d.ops:
			now := time.Since(d.began)
			d.model.Advance(now, d.emit)
			op(now)
		case <-timer.C:
			d.model.Advance(time.Since(d.began), d.emit)
		case <-d.quit:
			for _, j := range d.model.Reset(time.Since(d.began)) {
				j.User.(*seat).flight.fail(errStopped)
			}
			return
		}
	}
}

func (d *driver) stop() {
	d.stopOnce.Do(func() { close(d.quit) })
	<-d.done
}

func (d *driver) do(op func(now time.Duration)) error {
	ran := make(chan struct{})
	select {
	case d.ops <- func(now time.Duration) { op(now); close(ran) }:
		<-ran
		return nil
	case <-d.done:
		return errStopped
	}
}

func (d *driver) emit(e Event) {
	seat := e.Job.User.(*seat)
	f := seat.flight
	f.mu.Lock()
	defer f.mu.Unlock()
	wake := false
	switch e.Kind {
	case Admitted:
		seat.cached = e.Job.Cached
	case FirstToken:
		d.ttft.Observe((e.At - e.Job.Submitted).Seconds())
		seat.tokens++
		wake = e.Job.Watch
	case Tokens:
		seat.tokens += e.Tokens
		wake = true
	case Finished:
		d.latency.Observe((e.At - e.Job.Submitted).Seconds())
		seat.tokens = e.Job.OutputTokens
		seat.done = true
		f.left--
		wake = e.Job.Watch || f.left == 0
	case Refused:
		f.err = errTooLarge
		wake = true
	}
	if wake {
		f.wake()
	}
}

type flight struct {
	driver *driver
	seats  []*seat
	notify chan struct{}

	mu   sync.Mutex // guards the fields below and the progress of the seats
	left int
	err  error
}

type seat struct {
	flight *flight
	call   *call
	job    Job
	prompt []byte
	reply  []byte

	progress
}

type progress struct {
	tokens int // generated so far; jumps to the total for a job that is not watched
	cached int
	done   bool
}

func (d *driver) prepare(f *flight) {
	f.driver, f.left, f.notify = d, len(f.seats), make(chan struct{}, 1)
}

// launch submits the jobs of a prepared flight, unless it was aborted.
func (d *driver) launch(f *flight) error {
	var failed error
	err := d.do(func(now time.Duration) {
		if _, failed = f.landed(); failed != nil {
			return
		}
		if len(d.model.waiting)+len(f.seats) > maxWaiting {
			failed = errBusy
			return
		}
		for _, s := range f.seats {
			if !d.model.fits(&s.job) {
				failed = errTooLarge
				return
			}
		}
		for _, s := range f.seats {
			s.flight = f
			s.job.User = s
			d.model.Submit(&s.job, now)
		}
	})
	return errors.Join(err, failed)
}

var errAborted = errors.New("engine: aborted")

// abort removes unfinished jobs from the engine. It returns true to the first caller only, and only
// if a job was unfinished.
func (f *flight) abort() bool {
	f.mu.Lock()
	if f.left == 0 || f.err != nil {
		f.mu.Unlock()
		return false
	}
	f.err = errAborted
	f.mu.Unlock()
	// A stopped driver has dropped the jobs already.
	_ = f.driver.do(func(now time.Duration) {
		for _, s := range f.seats {
			f.driver.model.Cancel(&s.job, now)
		}
	})
	return true
}

func (f *flight) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.wake()
}

func (f *flight) wake() {
	select {
	case f.notify <- struct{}{}:
	default:
	}
}

func (f *flight) state(i int) (progress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seats[i].progress, f.err
}

func (f *flight) landed() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left == 0, f.err
}

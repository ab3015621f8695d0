package fleetsim

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/chaos/report"
)

// Run returns the reports of every combination of policy, nodes, share and staleness in this order,
// the last varying fastest; it plays equivalent ones once. It returns the first error, or ctx's.
func Run(ctx context.Context, cfg Config) ([]report.Report, error) {
	cfg, err := cfg.completed()
	if err != nil {
		return nil, err
	}
	c, err := newChainer(cfg.Workload.KeyTokens(), cfg.Options.Seed)
	if err != nil {
		return nil, err
	}
	b := &batch{cfg: &cfg, chainer: c}
	if err := b.prepare(); err != nil {
		return nil, err
	}
	return b.play(ctx)
}

type batch struct {
	cfg     *Config
	chainer *chainer
	points  []point
	runs    []point
	span    time.Duration
	total   int
	mu      sync.Mutex
}

// prepare makes every fleet once, so that an invalid setting fails early.
func (b *batch) prepare() error {
	src, err := b.cfg.Workload.Source(b.cfg.Options)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	b.span, b.total = src.Span(), src.Total()
	if b.cfg.Warmup >= b.span && b.cfg.Warmup > 0 {
		return fmt.Errorf("%w: warm-up of %v leaves nothing of a run of %v", ErrConfig, b.cfg.Warmup, b.span)
	}
	for _, p := range b.cfg.Policies {
		pt, err := newPoint(p)
		if err != nil {
			return err
		}
		pt.nodes = 1
		if _, err := newFleet(b.cfg, pt, b.chainer, b.span); err != nil {
			return err
		}
	}
	b.points = b.cfg.points()
	for _, p := range b.points {
		if e := p.effective(); !slices.Contains(b.runs, e) {
			b.runs = append(b.runs, e)
		}
	}
	return nil
}

func (b *batch) play(ctx context.Context) ([]report.Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	runs := len(b.runs)
	reports := make([]report.Report, runs)
	workers := b.cfg.Parallel
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, runs) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < runs; i = int(next.Add(1)) - 1 {
				var err error
				if reports[i], err = b.one(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	out := make([]report.Report, len(b.points))
	for i, p := range b.points {
		out[i] = reports[slices.Index(b.runs, p.effective())]
		out[i].Sharing = b.sharing(p)
	}
	return out, nil
}

func (b *batch) sharing(p point) *report.Sharing {
	s := &report.Sharing{Share: string(p.share), Loss: b.cfg.Loss}
	if c := b.cfg.Partition; !c.none() {
		s.PartitionS = []float64{c.From.Seconds(), c.To.Seconds()}
	}
	if p.staleness != Never {
		ms := float64(p.staleness) / float64(time.Millisecond)
		s.StalenessMS = &ms
	}
	return s
}

func (b *batch) one(ctx context.Context, i int) (report.Report, error) {
	pt := b.runs[i]
	f, err := newFleet(b.cfg, pt, b.chainer, b.span)
	if err != nil {
		return report.Report{}, err
	}
	f.feed = feed{chainer: b.chainer}
	if f.feed.Source, err = b.cfg.Workload.Source(b.cfg.Options); err != nil {
		return report.Report{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	tell := func(ended int, at time.Duration, done bool) {
		if b.cfg.Progress == nil {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cfg.Progress(Progress{Policy: pt.policy, Nodes: pt.nodes, Run: i, Runs: len(b.runs), Ended: ended, Total: b.total, At: at, Span: b.span, Done: done})
	}
	f.onProgress = func(ended int, at time.Duration) { tell(ended, at, false) }
	if err := f.run(ctx); err != nil {
		return report.Report{}, err
	}
	tell(f.ended, f.now, true)
	return f.report(), nil
}

// warmShare of the arrivals' time is excluded from prediction errors: empty caches are easily
// predicted.
const warmShare = 0.1

func (f *fleet) report() report.Report {
	speed := f.cfg.Options.Speed
	if speed == 0 {
		speed = 1
	}
	busy := make([]float64, len(f.engines.models))
	if d := f.span - f.warmedAt; d > 0 && f.atSpan != nil {
		for i := range busy {
			busy[i] = float64(f.atSpan[i]-f.atWarm[i]) / float64(d)
		}
	}
	r := f.rec.Report(report.Setting{
		Policy: f.point.policy, Workload: f.cfg.Workload.Name(), Nodes: len(f.nodes), Backends: f.cfg.Backends,
		Seed: f.cfg.Options.Seed, Speed: speed, Warmup: f.cfg.Warmup,
		WarmPrediction: max(f.cfg.Warmup, time.Duration(warmShare*float64(f.span))),
		Busy:           busy,
		Gossip:         f.exchange.report(),
		Hot:            f.hot.report(),
		Until:          f.span,
	})
	if r.Queueing = f.modeName(); r.Queueing == "" {
		r.Goodput = 0
	}
	return r
}

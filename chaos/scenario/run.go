package scenario

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
)

type run struct {
	cfg   Config
	s     *Scenario
	pace  pace
	began time.Time
}

type pace struct {
	calm time.Duration
	lead time.Duration
	tail time.Duration // least time from the end of the last event to the end of traffic
}

func (r *run) play(ctx context.Context) (e *evidence, err error) {
	debug.FreeOSMemory() // so that the report of this run does not have the memory of the last one
	l := newLedger()
	dir, err := os.MkdirTemp("", "grapevine-chaos-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := r.start(ctx, l, dir)
	if err != nil {
		return nil, err
	}
	defer func() { e.close(f, err == nil) }()
	if r.cfg.Keep != "" {
		if err := os.WriteFile(filepath.Join(r.cfg.Keep, "schedule"), []byte(r.cfg.Schedule.String()), 0o600); err != nil {
			return nil, err
		}
	}
	engines := make(map[string]string)
	for _, eng := range f.Engines() {
		engines[eng.Addr()] = eng.Name()
	}
	l.begin(engines)
	r.began = time.Now()
	o, op := newObserver(f, l), newOperator(f, engineConfig().Models, r.cfg.Seed, l)
	load := r.s.Load
	if r.cfg.Rate > 0 {
		load.Rate = r.cfg.Rate
	}
	t := newTraffic(load, r.cfg.Seed, f.URL(), engineConfig(), f.DialClient, l)
	t.whole, t.clients = ctx, r.s.Clients
	if r.s.Events {
		t.prompts = newPrompts(r.cfg.Seed)
	}
	w := &world{f: f, t: t, op: op, log: &marks{now: l.now}, newer: r.cfg.Newer, ready: readyWithin}
	e = &evidence{cfg: engineConfig(), nodes: fleet.Names("node", r.cfg.Nodes), engines: f.EngineNames(), calm: r.pace.calm, limit: drainLimit, width: sliceOf(r.cfg.Duration), struck: r.cfg.Duration, clients: r.s.Clients}
	if r.s.Queue.engine > 0 {
		e.wait, e.places = queueWait, r.s.Queue.engine
	}
	for _, ev := range r.cfg.Schedule {
		e.struck = min(e.struck, ev.At)
	}
	folded, err := newFolder(*e, l, w.log, o, r.cfg.Keep)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, folded.close()) }()

	looking, look := context.WithCancel(ctx)
	defer look()
	var watching sync.WaitGroup
	watching.Go(func() { o.play(looking) })
	watching.Go(func() { r.tell(looking, l) })
	var unkept error
	watching.Go(func() { unkept = folded.play(looking) })
	if err = r.traffic(ctx, e, l, t, op, w); err == nil {
		e.quiet = hush(ctx, f, l)
		e.forecasts, err = forecasts(ctx, f, t.prompts)
	}
	if err == nil {
		readAll(ctx, f, op)
	}
	look()
	watching.Wait()
	if err != nil {
		return e, err
	}
	folded.mem.look()
	e.past, e.harness = folded.past, folded.mem
	e.attempts, e.visits = l.take(math.MaxInt64)
	e.marks, e.seen = w.log.snapshot(), o.seen
	e.history, e.strange, e.late = op.log.Operations(), op.strange, op.late
	err = errors.Join(unkept, folded.write(e), ctx.Err())
	return e.whole(), err
}

func (r *run) start(ctx context.Context, l *ledger, dir string) (*fleet.Fleet, error) {
	if r.cfg.Progress != nil {
		r.cfg.Progress(Progress{Phase: phaseStart})
	}
	starting, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	cfg := fleet.Config{
		Binary: r.cfg.Binary, Nodes: r.cfg.Nodes, Engines: r.s.Engines, Engine: engineConfig(), Seed: r.cfg.Seed, Log: r.cfg.Log,
		Settings: settings(), Dir: r.cfg.Keep, HAProxy: r.s.HAProxy,
	}
	if r.s.Queue.engine > 0 {
		maps.Copy(cfg.Settings, r.s.Queue.settings())
	}
	if len(r.s.Clients) > 0 {
		file, err := writeClients(dir, r.s.Clients)
		if err != nil {
			return nil, err
		}
		cfg.Settings["clients_file"] = file
	}
	cfg.Engine.Watch, cfg.CacheEvents = l.watch, r.s.Events
	// Without the heap floor of serve, in which a leak could hide.
	cfg.Env = append([]string{"GOGC=100"}, r.cfg.Env...)
	cfg.Spares = max(0, r.cfg.Nodes-3)
	cfg.Switched = fleet.Isolated() && fleet.Supports(fleet.FaultLinks, "") == nil
	cfg.Certificates = slices.ContainsFunc(r.cfg.Schedule, func(e Event) bool { return e.Kind == "expire" })
	return fleet.Start(starting, cfg)
}

func (r *run) traffic(ctx context.Context, e *evidence, l *ledger, t *traffic, op *operator, w *world) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var load, events sync.WaitGroup
	var failed error
	load.Go(func() { failed = t.play(running) })
	load.Go(func() { op.play(running, 3, 150*time.Millisecond) })
	healed := make(chan struct{}) // closed to end events without an end of their own
	for _, ev := range r.cfg.Schedule {
		events.Go(func() {
			if sleep(running, ev.At-l.now()) == nil {
				w.carryOut(ctx, ev, healed)
			}
		})
	}
	err := sleep(ctx, max(r.pace.lead, r.cfg.Schedule.End())-l.now())
	if err != nil {
		stop()
	}
	close(healed)
	events.Wait()
	e.healed = l.now()
	if err == nil {
		// Events that took longer than scheduled do not shorten the time after.
		err = sleep(ctx, max(r.cfg.Duration, e.healed+r.pace.tail)-l.now())
	}
	e.stopped = l.now()
	stop()
	load.Wait()
	e.drained = l.now()
	return errors.Join(err, failed)
}

// readWithin bounds the final reads of a whole fleet with a leader.
const readWithin = 20 * time.Second

func readAll(ctx context.Context, f *fleet.Fleet, op *operator) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	for _, n := range f.Nodes() {
		var err error
		until(ctx, func() bool {
			err = nil
			if n.Running() {
				err = op.final(ctx, n)
			}
			return err == nil
		})
		if err != nil {
			op.note(&op.strange, op.l.now(), n, "did not answer a read of the membership within %v after the last fault: %v", readWithin, err)
			return
		}
	}
}

func (e *evidence) close(f *fleet.Fleet, whole bool) {
	err := f.Check()
	if err != nil && e != nil && whole {
		e.died = append(e.died, Violation{At: e.drained, Place: "the fleet", Evidence: err.Error()})
	}
	_ = f.Close() // repeats which nodes had ended; other errors do not matter any more
}

func (r *run) tell(ctx context.Context, l *ledger) {
	if r.cfg.Progress == nil {
		return
	}
	for sleep(ctx, 250*time.Millisecond) == nil {
		p := Progress{Phase: phaseTraffic, Elapsed: l.now(), Length: r.cfg.Duration}
		if p.Elapsed > p.Length {
			p.Phase = phaseQuiet
		}
		p.Attempts, p.Failed = l.count()
		r.cfg.Progress(p)
	}
}

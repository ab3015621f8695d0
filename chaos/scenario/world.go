package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"grapevine/chaos/engine"
	"grapevine/chaos/fleet"
)

type undo func(ctx context.Context) error

// world applies a schedule to a fleet. Safe for concurrent use.
type world struct {
	f     *fleet.Fleet
	t     *traffic
	op    *operator
	log   *marks
	newer string        // program of the next release, or ""
	ready time.Duration // how long a node may take to be ready

	mu    sync.Mutex
	links int
}

// carryOut does one event, waits for its end and undoes it. A failed event is recorded in its mark.
func (w *world) carryOut(ctx context.Context, e Event, end <-chan struct{}) {
	m := w.log.begin(e)
	members, err := w.resolve(ctx, e)
	w.log.set(m, func(m *Mark) { m.Members = members })
	var back undo
	if err == nil {
		back, err = w.inflict(ctx, m, members)
	}
	at := w.log.now()
	w.log.set(m, func(m *Mark) { m.Struck = at })
	if back != nil {
		if e.For > 0 {
			select {
			case <-time.After(e.For - min(e.For, at-m.Began)):
			case <-end:
			case <-ctx.Done():
			}
		} else {
			select {
			case <-end:
			case <-ctx.Done():
			}
		}
		began := w.log.now()
		w.log.set(m, func(m *Mark) { m.Ending = began })
		err = errors.Join(err, back(context.WithoutCancel(ctx)))
	}
	over := w.log.now()
	w.log.set(m, func(m *Mark) {
		m.Over = over
		if err != nil && ctx.Err() == nil {
			m.Failed = err.Error()
		}
	})
}

func (w *world) resolve(ctx context.Context, e Event) (out [][]string, err error) {
	for _, g := range e.Groups {
		var names []string
		for _, name := range g {
			if name == LeaderName || name == FollowerName {
				if name, err = w.who(ctx, name, names); err != nil {
					return out, err
				}
			}
			names = append(names, name)
		}
		out = append(out, names)
	}
	return out, nil
}

// whoWithin bounds the search for a leader; an election takes about a second.
const whoWithin = 10 * time.Second

func (w *world) who(ctx context.Context, role string, taken []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, whoWithin)
	defer cancel()
	var last error
	for {
		for _, n := range w.f.Nodes() {
			st, err := n.Raft(ctx)
			if err != nil {
				last = err
				continue
			}
			if st.Role != "leader" {
				continue
			}
			if role == LeaderName {
				return n.Name(), nil
			}
			for _, s := range st.Servers {
				if s.Voter && s.Name != n.Name() && s.Alive && w.f.Node(s.Name) != nil && !contains(taken, s.Name) {
					return s.Name, nil
				}
			}
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return "", fmt.Errorf("nobody is %s: %w", role, errors.Join(ctx.Err(), last))
		}
	}
}

func contains(list []string, name string) bool {
	for _, s := range list {
		if s == name {
			return true
		}
	}
	return false
}

func (w *world) inflict(ctx context.Context, m *Mark, members [][]string) (undo, error) {
	switch specOf(m.Kind).to {
	case toNodes:
		if m.Kind == "roll" || m.Kind == "upgrade" {
			for _, name := range members[0] {
				if err := w.turn(ctx, m, w.f.Node(name)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}
		return w.each(members[0], func(name string) (undo, error) { return w.toNode(ctx, m, w.f.Node(name)) })
	case toEngines:
		return w.each(members[0], func(name string) (undo, error) { return w.toEngine(ctx, m, w.engine(name)) })
	case toPair, toWay:
		return w.toLinks(m, members[0], members[1])
	}
	rate, _ := strconv.ParseFloat(m.param("rate"), 64)
	tokens, _ := strconv.ParseInt(m.param("tokens"), 10, 64)
	flooding, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.t.flood(flooding, rate, int(tokens))
	}()
	return func(context.Context) error {
		stop()
		<-done
		return nil
	}, nil
}

func (w *world) each(names []string, do func(name string) (undo, error)) (undo, error) {
	undos, errs := make([]undo, len(names)), make([]error, len(names))
	var work sync.WaitGroup
	for i, name := range names {
		work.Go(func() { undos[i], errs[i] = do(name) })
	}
	work.Wait()
	any := false
	for _, u := range undos {
		any = any || u != nil
	}
	if !any {
		return nil, errors.Join(errs...)
	}
	return func(ctx context.Context) error {
		errs := make([]error, len(undos))
		var work sync.WaitGroup
		for i, u := range undos {
			if u != nil {
				work.Go(func() { errs[i] = u(ctx) })
			}
		}
		work.Wait()
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

func (w *world) engine(name string) *fleet.Engine {
	for _, e := range w.f.Engines() {
		if e.Name() == name {
			return e
		}
	}
	return nil
}

func (w *world) toNode(ctx context.Context, m *Mark, n *fleet.Node) (undo, error) {
	heal := func(context.Context) error { return n.HealDisk() }
	switch m.Kind {
	case "kill":
		return w.restarting(ctx, n), n.Kill()
	case "stop":
		return w.restarting(ctx, n), w.stop(ctx, m, n)
	case "start":
		return nil, w.start(ctx, n)
	case "pause":
		return func(context.Context) error { return n.Resume() }, n.Pause()
	case "fill-disk":
		return heal, n.FillDisk()
	case "hang-disk":
		return heal, n.HangDisk()
	case "slow-disk":
		by, _ := time.ParseDuration(m.param("by"))
		return heal, n.SlowDisk(by)
	case "clock":
		by, _ := time.ParseDuration(m.param("step"))
		return nil, n.StepClock(by)
	case "expire":
		in, _ := time.ParseDuration(m.param("in"))
		return func(context.Context) error { return n.IssueCertificate(fleet.CertificateLife) }, n.IssueCertificate(in)
	case "malformed":
		rate, _ := strconv.ParseFloat(m.param("rate"), 64)
		return w.strangers(ctx, n, rate)
	}
	panic("scenario: nothing is done to a node for " + m.Kind)
}

func (w *world) restarting(run context.Context, n *fleet.Node) undo {
	return func(ctx context.Context) error {
		select {
		case <-run.Done():
			return nil
		default:
			return w.start(ctx, n)
		}
	}
}

func (w *world) start(ctx context.Context, n *fleet.Node) error {
	if err := n.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.ready)
	defer cancel()
	return n.WaitReady(ctx)
}

const stopWithin = 60 * time.Second

func (w *world) stop(ctx context.Context, m *Mark, n *fleet.Node) error {
	w.log.step(m, n.Name(), "asked to stop")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	err := n.Terminate(ctx)
	w.log.step(m, n.Name(), "gone")
	return err
}

func (w *world) turn(ctx context.Context, m *Mark, n *fleet.Node) error {
	if err := w.stop(ctx, m, n); err != nil {
		return err
	}
	if m.Kind == "upgrade" {
		n.UseBinary(w.newer)
	}
	w.log.step(m, n.Name(), "started")
	if err := w.start(ctx, n); err != nil {
		return err
	}
	w.log.step(m, n.Name(), "ready")
	known, cancel := context.WithTimeout(ctx, w.ready)
	defer cancel()
	if err := w.f.WaitHealthy(known, n.Name(), true); err != nil {
		return err
	}
	if m.Kind != "roll" {
		return nil
	}
	pause, _ := time.ParseDuration(m.param("pause"))
	return sleep(ctx, pause)
}

func (w *world) toEngine(ctx context.Context, m *Mark, e *fleet.Engine) (undo, error) {
	inject := func(f engine.Fault) (undo, error) {
		s := e.Server()
		if s == nil {
			return nil, fmt.Errorf("%s does not run", e.Name())
		}
		return func(context.Context) error {
			if now := e.Server(); now != s {
				return nil
			}
			return s.Inject(engine.Fault{Kind: "none"})
		}, s.Inject(f)
	}
	switch m.Kind {
	case "crash":
		return func(context.Context) error { return e.Start() }, e.Stop()
	case "hang":
		return inject(engine.Fault{Kind: "hang"})
	case "slow":
		factor, _ := strconv.ParseFloat(m.param("factor"), 64)
		return inject(engine.Fault{Kind: "slow", Factor: factor})
	case "amnesia":
		_, err := inject(engine.Fault{Kind: "amnesia"})
		return nil, err
	case "overload":
		return inject(engine.Fault{Kind: "503"})
	case "break":
		count, _ := strconv.Atoi(m.param("count"))
		after, _ := strconv.ParseInt(m.param("after"), 10, 64)
		return inject(engine.Fault{Kind: "reset", Count: count, AfterBytes: after})
	case "lie":
		factor, _ := strconv.ParseFloat(m.param("factor"), 64)
		return inject(engine.Fault{Kind: "lie", Factor: factor})
	case "drain":
		return func(ctx context.Context) error { return w.op.change(ctx, opResume, e) }, w.op.change(ctx, opDrain, e)
	case "remove":
		return func(ctx context.Context) error { return w.op.change(ctx, opAdd, e) }, w.op.change(ctx, opRemove, e)
	}
	panic("scenario: nothing is done to an engine for " + m.Kind)
}

func (w *world) toLinks(m *Mark, a, b []string) (undo, error) {
	switch m.Kind {
	case "reset":
		return nil, w.pairs(a, b, w.f.ResetLink)
	case "partition":
		return w.laid(), w.f.Partition(a, b)
	}
	l := linkOf(&m.Event)
	return w.laid(), w.pairs(a, b, func(x, y string) error { return w.f.SetLink(x, y, l) })
}

func (w *world) pairs(a, b []string, do func(x, y string) error) error {
	for _, x := range a {
		for _, y := range b {
			if err := do(x, y); err != nil {
				return err
			}
		}
	}
	return nil
}

// laid counts link faults. The last undo heals all of them, because a link does not keep its
// earlier settings.
func (w *world) laid() undo {
	w.mu.Lock()
	w.links++
	w.mu.Unlock()
	return func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.links--; w.links > 0 {
			return nil
		}
		return w.f.Heal()
	}
}

func linkOf(e *Event) fleet.Link {
	number := func(name string) float64 {
		x, _ := strconv.ParseFloat(e.param(name), 64)
		return x
	}
	span := func(name string) time.Duration {
		d, _ := time.ParseDuration(e.param(name))
		return d
	}
	rate, _ := strconv.ParseInt(e.param("rate"), 10, 64)
	return fleet.Link{Delay: span("delay"), Jitter: span("jitter"), Loss: number("loss"), Duplicate: number("duplicate"), Reorder: number("reorder"), Rate: rate}
}

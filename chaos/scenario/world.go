package scenario

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/history"
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

	mu    sync.Mutex               // also held while links heal
	links int                      // link faults in effect
	gone  map[string]chan struct{} // by node, capacity 1: full while a fault ends it, until it is ready again
}

// carryOut does one event, waits for its end and undoes it.
func (w *world) carryOut(ctx context.Context, e Event, end <-chan struct{}) {
	members, err := w.resolve(ctx, e)
	if err == nil {
		defer w.alone(&e, members)()
	}
	m := w.log.begin(e)
	w.log.set(m, func(m *Mark) { m.Members = members })
	var back undo
	if err == nil {
		back, err = w.inflict(ctx, m, members)
	}
	w.log.set(m, func(m *Mark) { m.Struck = w.log.now() })
	if back != nil {
		var over <-chan time.Time
		if e.For > 0 {
			over = time.After(m.Began + e.For - w.log.now())
		}
		select {
		case <-over:
		case <-end:
		case <-ctx.Done():
		}
		w.log.set(m, func(m *Mark) { m.Ending = w.log.now() })
		err = errors.Join(err, back(context.WithoutCancel(ctx)))
	}
	w.log.set(m, func(m *Mark) {
		m.Over = w.log.now()
		if err != nil && ctx.Err() == nil {
			m.Failed = err.Error()
		}
	})
}

// alone waits until no other fault has ended, or ends, the nodes of a fault. If this one ends nodes, later ones wait until over is called. A
// router that drains a queue may be gone, and one that starts be ready, only after the next fault of the schedule is due.
func (w *world) alone(e *Event, members [][]string) (over func()) {
	var taken []chan struct{}
	over = func() {
		for _, t := range taken {
			<-t
		}
	}
	if specOf(e.Kind).to != toNodes || e.Kind == "start" {
		return over
	}
	w.mu.Lock()
	if w.gone == nil {
		w.gone = make(map[string]chan struct{})
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(members[0]))) { // one order for all faults
		if w.gone[name] == nil {
			w.gone[name] = make(chan struct{}, 1)
		}
		taken = append(taken, w.gone[name])
	}
	w.mu.Unlock()
	for _, t := range taken {
		t <- struct{}{}
	}
	if !slices.Contains(startsNode, e.Kind) {
		over()
		taken = nil
	}
	return over
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
				if s.Voter && s.Name != n.Name() && s.Alive && w.f.Node(s.Name) != nil && !slices.Contains(taken, s.Name) {
					return s.Name, nil
				}
			}
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return "", fmt.Errorf("no node is %s: %w", role, errors.Join(ctx.Err(), last))
		}
	}
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
		return each(members[0], func(name string) (undo, error) { return w.toNode(ctx, m, w.f.Node(name)) })
	case toEngines:
		return each(members[0], func(name string) (undo, error) { return w.toEngine(ctx, m, w.f.Engine(name)) })
	case toPair, toWay:
		return w.toLinks(m, members[0], members[1])
	}
	return during(ctx, func(ctx context.Context) { w.t.flood(ctx, m.number("rate"), int(m.number("tokens"))) }), nil
}

// during runs f in the background until it is undone.
func during(ctx context.Context, f func(ctx context.Context)) undo {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func(context.Context) error {
		stop()
		<-done
		return nil
	}
}

// each does and later undoes the same to all members at once.
func each(names []string, do func(name string) (undo, error)) (undo, error) {
	undos := make([]undo, len(names))
	err := atOnceFor(names, func(i int) (err error) {
		undos[i], err = do(names[i])
		return err
	})
	if !slices.ContainsFunc(undos, func(u undo) bool { return u != nil }) {
		return nil, err
	}
	return func(ctx context.Context) error {
		return atOnceFor(names, func(i int) error {
			if undos[i] == nil {
				return nil
			}
			return undos[i](ctx)
		})
	}, err
}

func atOnceFor(names []string, f func(i int) error) error {
	errs := make([]error, len(names))
	var work sync.WaitGroup
	for i := range names {
		work.Go(func() { errs[i] = f(i) })
	}
	work.Wait()
	return errors.Join(errs...)
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
		return heal, n.SlowDisk(m.duration("by"))
	case "clock":
		return nil, n.StepClock(m.duration("step"))
	case "expire":
		return func(context.Context) error { return n.IssueCertificate(fleet.CertificateLife) }, n.IssueCertificate(m.duration("in"))
	case "malformed":
		return w.strangers(ctx, n, m.number("rate"))
	}
	panic("scenario: no node fault " + m.Kind)
}

func (w *world) restarting(run context.Context, n *fleet.Node) undo {
	return func(ctx context.Context) error {
		if run.Err() == nil {
			return w.start(ctx, n)
		}
		return nil
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

// turn is a node's part of a roll or an upgrade.
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
	return sleep(ctx, m.duration("pause"))
}

func (w *world) toEngine(ctx context.Context, m *Mark, e *fleet.Engine) (undo, error) {
	switch m.Kind {
	case "crash":
		return func(context.Context) error { return e.Start() }, e.Stop()
	case "drain":
		return func(ctx context.Context) error { return w.op.change(ctx, history.Resume, e) }, w.op.change(ctx, history.Drain, e)
	case "remove":
		return func(ctx context.Context) error { return w.op.change(ctx, history.Add, e) }, w.op.change(ctx, history.Remove, e)
	}
	s := e.Server()
	if s == nil {
		return nil, fmt.Errorf("%s does not run", e.Name())
	}
	kind := m.Kind
	if own, ok := map[string]string{"overload": "503", "break": "reset", "renew": "restart"}[kind]; ok {
		kind = own
	}
	factor := "factor"
	if kind == "lose" {
		factor = "share"
	}
	err := s.Inject(engine.Fault{Kind: kind, Factor: m.number(factor), Count: int(m.number("count")), AfterBytes: int64(m.number("after"))})
	if kind == "amnesia" || kind == "restart" {
		return nil, err
	}
	return func(context.Context) error {
		if e.Server() != s {
			return nil // started again, without faults
		}
		return s.Inject(engine.Fault{Kind: "none"})
	}, err
}

func (w *world) toLinks(m *Mark, a, b []string) (undo, error) {
	switch m.Kind {
	case "reset":
		return nil, pairs(a, b, w.f.ResetLink)
	case "partition":
		return w.laid(w.f.Heal), w.f.Partition(a, b)
	}
	l := linkOf(&m.Event)
	return w.laid(w.f.Heal), pairs(a, b, func(x, y string) error { return w.f.SetLink(x, y, l) })
}

func pairs(a, b []string, do func(x, y string) error) error {
	for _, x := range a {
		for _, y := range b {
			if err := do(x, y); err != nil {
				return err
			}
		}
	}
	return nil
}

// laid counts link faults: only the last undo heals, because a link keeps no earlier settings. The
// lock keeps a fault from beginning while links heal, which would remove it.
func (w *world) laid(heal func() error) undo {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links++
	return func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.links--; w.links > 0 {
			return nil
		}
		return heal()
	}
}

func linkOf(e *Event) fleet.Link {
	return fleet.Link{
		Delay: e.duration("delay"), Jitter: e.duration("jitter"), Loss: e.number("loss"), Duplicate: e.number("duplicate"), Reorder: e.number("reorder"),
		Rate: int64(e.number("rate")),
	}
}

func (w *world) strangers(ctx context.Context, n *fleet.Node, rate float64) (undo, error) {
	st, err := n.Raft(ctx)
	if err != nil {
		return nil, fmt.Errorf("raft address of %s: %w", n.Name(), err)
	}
	ports := []string{n.GossipAddr(), st.Addr, n.Addr(), n.AdminAddr()}
	rng := rand.New(rand.NewPCG(w.t.seed, 0x57a6))
	return during(ctx, func(ctx context.Context) {
		var work sync.WaitGroup
		defer work.Wait()
		for sleep(ctx, time.Duration(rng.ExpFloat64()/rate*float64(time.Second))) == nil {
			said, port, datagram := nonsense(rng), ports[rng.IntN(len(ports))], rng.IntN(4) == 0
			work.Go(func() { babble(ctx, n, port, said, datagram) })
		}
	}), nil
}

func babble(ctx context.Context, n *fleet.Node, port string, said []byte, datagram bool) {
	network := "tcp"
	if datagram {
		network, port = "udp", n.GossipAddr()
		said = said[:min(len(said), 1200)]
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, network, port)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // an open connection supports deadlines
	if _, err := c.Write(said); err != nil || datagram {
		return
	}
	_, _ = io.CopyN(io.Discard, c, 4096)
}

func nonsense(rng *rand.Rand) []byte {
	random := make([]byte, 1+rng.IntN(2000))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	switch rng.IntN(6) {
	case 0:
		return append([]byte{0x16, 3, 1, byte(rng.Uint32()), byte(rng.Uint32())}, random...)
	case 1:
		return append(binary.BigEndian.AppendUint32(nil, 0xfffffff0), random...)
	case 2:
		return []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	case 3:
		return append([]byte("GET /\x00"), random...)
	case 4:
		random[0] = byte(rng.IntN(16))
	}
	return random
}

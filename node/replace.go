package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/node/handover"
	"grapevine.example/node/share"
	"grapevine.example/proxy/clients"
)

// ErrNotReplaceable is wrapped by HandOver's errors about the node's state.
var ErrNotReplaceable = errors.New("cannot be replaced now")

const (
	// builtWithin bounds the time in which a new process reads its configuration and receives what this one knows.
	builtWithin = time.Minute
	// inheritedFor is how long the predecessor's measurements of engines count beside this process's own.
	inheritedFor = 10 * time.Minute

	predecessorName = "(predecessor)" // no name of a node has parentheses

	handoverPage = 48 << 10 // bytes
)

// Launch starts the process that is to replace this one.
type Launch func(context.Context, handover.Hello, []net.Listener) (*handover.Successor, error)

// HandOver replaces this process by the one that launch starts: the new one gets the sockets that
// listen and what this node knows; then this node ends all that only one process may own, and the new
// one starts. announce tells the service manager of the new process. Afterwards the caller drains and stops
// this node. After an error nothing has changed; if the node cannot begin again what it had ended, it
// fails (see Failed).
func (n *Node) HandOver(ctx context.Context, launch Launch, announce func(pid int) error) error {
	if !n.replacing.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: it is being replaced", ErrNotReplaceable)
	}
	defer n.replacing.Store(false)
	if ready, reason := n.ready.get(); !ready {
		return fmt.Errorf("%w: it is not ready: %s", ErrNotReplaceable, reason)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != running {
		return ErrStopped
	}
	log := n.log.With().Str("component", "replace").Logger()
	hello, listeners := n.offer()
	s, err := launch(ctx, hello, listeners)
	if err != nil {
		return err
	}
	version, err := n.prepare(ctx, s)
	if err != nil {
		return errors.Join(err, s.Kill())
	}
	log.Info().Str("event", EventReplacing).Int("pid", s.PID).Str("version", version).Msg("the new process has this one's knowledge of caches: handing over")
	if err = n.yield(ctx, s); err == nil {
		err = announce(s.PID)
	}
	if err == nil {
		err = s.Yours(ctx)
	}
	if err == nil {
		n.run(&n.reports, "usage of the last requests", func(ctx context.Context) { n.reportUsage(ctx, n.usagePage, s.Give) })
		log.Info().Str("event", EventHandedOver).Int("pid", s.PID).Str("version", version).Int("requests", n.proxy.InFlight()).Msg("handed over: this process ends its running requests")
		return nil
	}
	err = errors.Join(err, s.Kill()) // which ends Take
	if ctx.Err() != nil {
		return err // this process is to stop
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.StartWithin())
	defer cancel()
	if again := n.startSingle(ctx, nil, nil); again != nil {
		again = fmt.Errorf("begin again after a failed replacement: %w", again)
		n.fail(again)
		return errors.Join(err, again)
	}
	n.released.Store(false)
	n.grantAgain()
	return err
}

func (n *Node) offer() (handover.Hello, []net.Listener) {
	hello := handover.Hello{Secret: n.randomSecret}
	var listeners []net.Listener
	for _, s := range []handover.Socket{{Setting: "listen", Address: n.cfg.Listen}, {Setting: "admin", Address: n.cfg.Admin}, {Setting: "metrics_listen", Address: n.cfg.MetricsListen}} {
		ln := n.sockets[s.Setting]
		if ln == nil {
			continue
		}
		if s.Setting == "listen" && n.cfg.Inherited.SocketUnit {
			s.Address = ""
		}
		hello.Sockets, listeners = append(hello.Sockets, s), append(listeners, ln)
	}
	return hello, listeners
}

// prepare waits until the new process has accepted its configuration, and gives it what this node knows.
func (n *Node) prepare(ctx context.Context, s *handover.Successor) (version string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, builtWithin, errors.New("the new process does not begin in time"))
	defer cancel()
	if version, err = s.Built(ctx); err != nil {
		return "", err
	}
	page := handover.Page{KeyID: n.hasher.KeyID(), BlockBytes: n.hasher.BlockBytes()}
	give := func(data []byte, state bool) bool {
		page.Data, page.State = data, state
		err = s.Give(ctx, &page)
		return err == nil
	}
	n.shared.Snapshot(handoverPage, now(), func(data []byte, _ int) bool { return give(data, false) })
	if err != nil || !give(n.shared.State(nil, now()), true) {
		return "", err
	}
	return version, s.EndOfPages(ctx)
}

// yield ends what only one process may own, and returns when the new one serves.
func (n *Node) yield(ctx context.Context, s *handover.Successor) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.StartWithin()+stopSlack, errors.New("the new process does not serve in time"))
	defer cancel()
	n.released.Store(true)
	n.grantLast()
	if err := n.single.unwind(ctx); err != nil {
		return err
	}
	page, err := n.usagePage()
	if err == nil {
		err = s.Released(ctx, page)
	}
	if err == nil {
		n.run(&n.reports, "usage of the new process", func(ctx context.Context) { s.Take(ctx, n.takeUsage) })
	}
	return err
}

// grantLast makes this process grant of clients' limits its part of what it then believes to be left, which it shares with the new
// process. Its peers leave it its part (see heardFleet).
func (n *Node) grantLast() {
	l := &n.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beforeSwitch, l.successor = n.meter.Fleet(), companion{is: true}
	n.setFleetLocked()
}

// grantAgain undoes grantLast. The new process has said nothing yet.
func (n *Node) grantAgain() {
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	n.limits.successor = companion{}
	n.setFleetLocked()
}

// usage is what requests use, for the other process of a replacement: the old one says what its requests use and those of processes
// that it replaced, the new one what all others of the fleet use.
type usage struct {
	Nodes int            `json:"nodes"` // of the fleet, when it was last heard
	Uses  []clients.Held `json:"uses"`
	Loads []gossip.Load  `json:"loads"` // the old process only
}

// usagePage is for the process that replaces this one.
func (n *Node) usagePage() (*handover.Page, error) {
	u := usage{Nodes: n.meter.Fleet().Nodes, Uses: n.meter.HandOn(nil, n.meter.Now())}
	if n.knowledge != nil {
		u.Loads = n.knowledge.Loads(nil)
	} else {
		u.Loads = n.shared.Loads(nil, now())
		if before := n.before.Load(); before != nil {
			u.Loads = addLoads(u.Loads, *before)
		}
	}
	return pageOf(&u)
}

func pageOf(u *usage) (*handover.Page, error) {
	data, err := json.Marshal(u)
	return &handover.Page{Usage: true, Data: data}, err
}

const (
	// usageEvery is as often as gossip's flushes, and at most perUsageByte: among 10,000 clients, every half second.
	usageEvery   = 50 * time.Millisecond
	perUsageByte = time.Microsecond
	// lastUsageWithin bounds the time in which the other process takes the last page.
	lastUsageWithin = time.Second
)

// reportUsage gives pages until ctx ends, then a last one, also while no request runs: more may come on kept connections, and the
// other process must hear that this one lives.
func (n *Node) reportUsage(ctx context.Context, page func() (*handover.Page, error), give func(context.Context, *handover.Page) error) {
	giving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastUsageWithin, cancel) })()
	for more := true; more; {
		more = ctx.Err() == nil // else this page is the last
		p, err := page()
		if err == nil {
			err = give(giving, p)
		}
		if errors.Is(err, handover.ErrEnded) {
			return // it has exited
		}
		if err != nil {
			n.log.Warn().Str("component", "replace").Err(err).Msg("the other process does not take what this one's requests use")
			return
		}
		select {
		case <-time.After(max(usageEvery, time.Duration(len(p.Data))*perUsageByte)):
		case <-ctx.Done():
		}
	}
}

// EndReports ends what this process says to the one that it replaces and to the one that replaces it. Call it last: until then
// it speaks for its predecessor too.
func (n *Node) EndReports() {
	n.mu.Lock()
	defer n.mu.Unlock()
	_ = n.reports.unwind(context.Background()) // which ends loops only
}

// ReportTo gives the process that this one replaces what this one's requests and its peers' use, until that has ended.
func (n *Node) ReportTo(give func(context.Context, *handover.Page) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != running {
		return
	}
	page := func() (*handover.Page, error) {
		return pageOf(&usage{Uses: n.meter.HandBack(nil, n.meter.Now())})
	}
	n.run(&n.reports, "usage for the former process", func(ctx context.Context) { n.reportUsage(ctx, page, give) })
}

// takeUsage takes a page of the process that replaces this one.
func (n *Node) takeUsage(p *handover.Page) {
	var u usage
	if err := json.Unmarshal(p.Data, &u); err != nil {
		n.log.Warn().Str("component", "replace").Err(err).Msg("what the new process's requests use cannot be read")
		return
	}
	n.meter.Successor(u.Uses, n.meter.Now())
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	n.limits.successor.heard = time.Now()
	n.setFleetLocked()
}

// PredecessorEnded says that the process that this one replaces has exited.
func (n *Node) PredecessorEnded() {
	n.meter.PredecessorEnded(n.meter.Now())
	n.setBefore(nil)
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	n.limits.predecessor = companion{}
	n.setFleetLocked()
}

func (n *Node) setBefore(loads []gossip.Load) {
	n.before.Store(&loads)
	if n.knowledge != nil {
		n.knowledge.before.Store(&loads)
	}
	n.shared.PeerLoad(predecessorName, loads, true, now())
}

// Inherit takes a page of the predecessor's knowledge: of caches and engines before Start, of what its requests use also
// later.
func (n *Node) Inherit(p *handover.Page) error {
	if p.Usage {
		return n.inheritUsage(p.Data)
	}
	if p.KeyID != n.hasher.KeyID() || p.BlockBytes != n.hasher.BlockBytes() {
		return nil // another secret or block size: its hashes mean nothing here
	}
	if !p.State {
		_, err := n.shared.Apply(p.Data, 0, now())
		return err
	}
	state, err := share.Parse(p.Data)
	if err != nil {
		return err
	}
	n.shared.PeerState(predecessorName, &share.State{Claims: state.Claims})
	return nil
}

func (n *Node) inheritUsage(data []byte) error {
	var u usage
	if err := json.Unmarshal(data, &u); err != nil {
		return err
	}
	n.meter.Predecessor(u.Uses, n.meter.Now())
	n.setBefore(u.Loads)
	l := &n.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.predecessor.is {
		l.predecessor.heard = time.Now()
	} else { // before Start: what it admits until this process serves is in no page yet
		l.predecessor.is, l.nodesBefore = true, u.Nodes
	}
	return nil
}

// forgetPredecessor ends the weight of measurements that no process confirms any more.
func (n *Node) forgetPredecessor(ctx context.Context) {
	select {
	case <-time.After(inheritedFor):
		n.shared.DropPeer(predecessorName)
	case <-ctx.Done():
	}
}

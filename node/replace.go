package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
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
		// It ends with Stop, after the requests have ended.
		n.run(&n.single, "usage of the last requests", func(ctx context.Context) { n.reportUsage(ctx, s) })
		log.Info().Str("event", EventHandedOver).Int("pid", s.PID).Str("version", version).Int("requests", n.proxy.InFlight()).Msg("handed over: this process ends its running requests")
		return nil
	}
	err = errors.Join(err, s.Kill())
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
	page, _, err := n.usagePage()
	if err != nil {
		return err
	}
	return s.Released(ctx, page)
}

// grantLast makes this process grant of clients' limits what was its part of the rest when it last heard its peers.
// These leave it its part (see heardFleet).
func (n *Node) grantLast() {
	f := n.meter.Fleet()
	f.Silent = true
	n.meter.SetFleet(f)
}

// usage is what a process and those that it replaced use, for the one that replaces it.
type usage struct {
	Nodes int           `json:"nodes"` // of the fleet, when it was last heard
	Uses  []clients.Use `json:"uses"`
	Loads []gossip.Load `json:"loads"`
}

func (n *Node) usagePage() (p *handover.Page, requests bool, err error) {
	u := usage{Nodes: n.meter.Fleet().Nodes, Uses: n.meter.HandOn(nil, n.meter.Now())}
	if n.knowledge != nil {
		u.Loads = n.knowledge.Loads(nil)
	} else {
		u.Loads = n.shared.Loads(nil, now())
	}
	data, err := json.Marshal(u)
	requests = len(u.Loads) > 0 || slices.ContainsFunc(u.Uses, func(u clients.Use) bool { return u.InFlight > 0 })
	return &handover.Page{Usage: true, Data: data}, requests, err
}

const (
	// usageEvery is as often as gossip's flushes, and at most perUsageByte: among 10,000 clients, every half second.
	usageEvery   = 50 * time.Millisecond
	perUsageByte = time.Microsecond
	// usageWithin bounds the time in which the new process takes a page.
	usageWithin = time.Second
)

// reportUsage gives the new process what the requests use that this one still has, until the last has ended.
func (n *Node) reportUsage(ctx context.Context, s *handover.Successor) {
	give := func() (size int, more bool) {
		page, requests, err := n.usagePage()
		if err == nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usageWithin)
			defer cancel()
			err = s.Give(ctx, page)
		}
		if err != nil {
			n.log.Warn().Str("component", "replace").Err(err).Msg("the new process does not take what this one's requests use")
			return 0, false
		}
		return len(page.Data), requests
	}
	for running := true; running; {
		size, more := give()
		running = more
		select {
		case <-time.After(max(usageEvery, time.Duration(size)*perUsageByte)):
		case <-ctx.Done():
			if running {
				give()
			}
			return
		}
	}
}

// PredecessorEnded says that the process that this one replaces has exited.
func (n *Node) PredecessorEnded() {
	n.meter.PredecessorEnded(n.meter.Now())
	n.setBefore(nil)
}

func (n *Node) setBefore(loads []gossip.Load) {
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
	if n.nodesBefore == 0 { // before Start
		n.nodesBefore = u.Nodes
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

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"grapevine.example/node/handover"
	"grapevine.example/node/share"
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
	if err := n.single.unwind(ctx); err != nil {
		return err
	}
	return s.Released(ctx)
}

// Inherit takes a page of the predecessor's knowledge, before Start.
func (n *Node) Inherit(p *handover.Page) error {
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

// forgetPredecessor ends the weight of measurements that no process confirms any more.
func (n *Node) forgetPredecessor(ctx context.Context) {
	select {
	case <-time.After(inheritedFor):
		n.shared.DropPeer(predecessorName)
	case <-ctx.Done():
	}
}

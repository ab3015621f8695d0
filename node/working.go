package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"grapevine/gossip"
	"grapevine/proxy/policy"
)

// workingPoll is how often Working looks whether a loop has gone round.
const workingPoll = 10 * time.Millisecond

// loop is something that goes round for as long as the node works.
type loop struct {
	name  string
	turns func() uint64 // so far
}

// Working returns nil if this node can do its work, else an error that says
// which part cannot: a decision is made, the loop over the clients' connections
// and the one that tells other nodes go round, and a connection to the data port
// is taken and answered. It waits for signs of life until ctx ends. If a lock is
// held for ever it does not return at all, which its caller must take for the
// same (notify.Watch does).
//
// What is not asked: whether engines or other nodes are there, whether the node
// is ready, how much it has to do. None of that is mended by ending it. For a
// node that does not run, or is stopping, it says nothing: nil.
func (n *Node) Working(ctx context.Context) error {
	if !n.serving.Load() {
		return nil
	}
	if err := n.decides(); err != nil {
		return err
	}
	loops := []loop{{"the watch over the clients' connections", n.proxy.Sweeps}}
	if n.knowledge != nil {
		loops = append(loops, loop{"the loop that tells other nodes", n.knowledgeTurns.Load})
	}
	for _, l := range loops {
		before := l.turns()
		if !n.until(ctx, func() bool { return l.turns() != before }) {
			return fmt.Errorf("%s stands still", l.name)
		}
	}
	if err := takesConnection(ctx, n.Addr(), n.cfg.ProxyProtocol); err != nil && n.serving.Load() {
		return fmt.Errorf("data port: %w", err)
	}
	return nil
}

// until polls until ok, or the node is no longer asked to work, or, which
// returns false, ctx ends.
func (n *Node) until(ctx context.Context, ok func() bool) bool {
	poll := time.NewTicker(workingPoll)
	defer poll.Stop()
	for !ok() && n.serving.Load() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// decides makes a decision as for a request and drops it.
func (n *Node) decides() error {
	_, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(`{"messages":[{"role":"user","content":"?"}]}`))
	if err != nil && !errors.Is(err, policy.ErrNoBackend) && !errors.Is(err, policy.ErrUnknownModel) {
		return fmt.Errorf("decision: %w", err)
	}
	return nil
}

// takesConnection returns nil if whoever listens on addr takes a connection: if
// it answers, or closes it, as it does where TLS is spoken or all connections
// that it may have are there. That there are no descriptors or ports to ask with says
// nothing about the other side.
func takesConnection(ctx context.Context, addr string, proxyProtocol bool) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = c.Close() }()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	request := "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	if proxyProtocol {
		request = "PROXY UNKNOWN\r\n" + request
	}
	// A reset is an answer too, of the kernel for a process that closed.
	if _, err := io.WriteString(c, request); err != nil && !timedOut(err) {
		return nil
	}
	if _, err := c.Read(make([]byte, 1)); err != nil && timedOut(err) {
		return errors.New("nobody takes connections")
	}
	return nil
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// counted is a node's knowledge that counts how often it is asked for its load,
// which gossip does with every turn of its loop.
type counted struct {
	*knowledge
	turns *atomic.Uint64
}

// Loads implements gossip.Knowledge.
func (c counted) Loads(dst []gossip.Load) []gossip.Load {
	dst = c.knowledge.Loads(dst)
	c.turns.Add(1)
	return dst
}

// Summary is how the node is doing, in one line for people.
func (n *Node) Summary() string {
	var parts []string
	if ready, reason := n.ready.get(); ready {
		parts = append(parts, "ready")
	} else {
		parts = append(parts, "not ready: "+reason)
	}
	if g := n.gossip.Load(); g != nil {
		parts = append(parts, count(1+alive(g.Members()), "node"))
	}
	list, avoided, at := n.fleet.roster().list, 0, now()
	for _, u := range list {
		if _, avoid := n.router.Avoided(u.id, at); avoid {
			avoided++
		}
	}
	engines := count(len(list), "engine")
	if avoided > 0 {
		engines += fmt.Sprintf(" (%d avoided)", avoided)
	}
	parts = append(parts, engines, count(n.proxy.InFlight(), "request")+" in flight")
	if c := n.certificateStatus(time.Now()); c != nil && c.Problem != "" {
		parts = append(parts, "its certificate "+c.Problem)
	}
	return strings.Join(parts, ", ")
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// startSlack is what a start takes beside its waiting.
const startSlack = 30 * time.Second

// StartWithin is how long Start may take: it waits for other nodes, within the
// bounds of the configuration.
func (n *Node) StartWithin() time.Duration {
	if n.knowledge == nil {
		return startSlack
	}
	return max(n.cfg.WarmDeadline, n.nameWait) + startSlack
}

// StopWithin is how long Drain with the configured grace and Stop may take
// together, if what is left is cut at the end of drain_timeout.
func (n *Node) StopWithin() time.Duration {
	c := n.running.Load()
	return c.DrainGrace + c.DrainClose + c.DrainTimeout + stopSlack
}

// stopSlack is what a stop takes beside its waiting: gossip's last word is
// bounded by some seconds.
const stopSlack = 15 * time.Second

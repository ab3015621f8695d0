package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"grapevine.example/proxy/policy"
)

const pollEvery = 10 * time.Millisecond

type loop struct {
	name  string
	turns func() uint64
}

// Working returns which part of this node does not work, or nil. With a lock held forever it never
// returns, which is a failure, too. Missing engines, readiness and load do not count: a restart
// repairs none.
func (n *Node) Working(ctx context.Context) error {
	if !n.serving.Load() {
		return nil
	}
	if err := n.decides(); err != nil {
		return err
	}
	loops := []loop{{"the watch over the clients' connections", n.proxy.Sweeps}}
	if n.knowledge != nil && !n.released.Load() {
		loops = append(loops, loop{"the loop that tells other nodes", n.knowledge.turns.Load})
	}
	for _, l := range loops {
		before := l.turns()
		if !poll(ctx, func() bool { return l.turns() != before || !n.serving.Load() || n.released.Load() }) {
			return fmt.Errorf("%s stands still", l.name)
		}
	}
	if err := takesConnection(ctx, n.Addr(), n.cfg.ProxyProtocol); err != nil && n.serving.Load() {
		return fmt.Errorf("data port: %w", err)
	}
	return nil
}

// poll returns false if ctx ends before ok.
func poll(ctx context.Context, ok func() bool) bool {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (n *Node) decides() error {
	_, err := n.Explain("/v1/chat/completions", func(string) []byte { return nil }, []byte(`{"messages":[{"role":"user","content":"?"}]}`))
	if err != nil && !errors.Is(err, policy.ErrNoBackend) && !errors.Is(err, policy.ErrUnknownModel) {
		return fmt.Errorf("decision: %w", err)
	}
	return nil
}

// takesConnection: a local lack of descriptors or ports is no verdict.
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
	// A reset is also a sign of life.
	if _, err := io.WriteString(c, request); err != nil && !timedOut(err) {
		return nil
	}
	if _, err := c.Read(make([]byte, 1)); err != nil && timedOut(err) {
		return errors.New("no connection is accepted")
	}
	return nil
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

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
	list, avoided, at := n.backends.Roster().List, 0, now()
	for _, u := range list {
		if _, avoid := n.router.Avoided(u.ID, at); avoid {
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

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

const startSlack = 30 * time.Second

// StartWithin bounds the duration of Start.
func (n *Node) StartWithin() time.Duration {
	if n.knowledge == nil {
		return startSlack
	}
	return max(n.cfg.WarmDeadline, n.nameWait) + startSlack
}

// StopWithin bounds Drain with the configured grace plus Stop with drain_timeout.
func (n *Node) StopWithin() time.Duration {
	c := n.running.Load()
	return c.DrainGrace + c.DrainClose + c.DrainTimeout + stopSlack
}

// stopSlack is for a stop's work beside its waits, such as gossip's leave.
const stopSlack = 15 * time.Second

package fleet

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

type BalancerConfig struct {
	Seed uint64 // of the random choice of a target per connection

	// Every Interval (default 250 ms) a target must answer GET /readyz with 200 within Timeout
	// (default 1 s). Two failures take it out, two successes bring it back.
	Interval, Timeout time.Duration

	Log zerolog.Logger
}

const (
	streak      = 2               // checks in a row that change a target's health
	dialTimeout = 3 * time.Second // for a connection to a target
)

type Target struct {
	Name, Addr string
}

// Balancer is a layer-4 balancer: a connection goes to a random healthy target, or to any if none
// is. It passes on ends and resets. Safe for concurrent use.
type Balancer struct {
	cfg  BalancerConfig
	at   where
	ln   net.Listener
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	targets []*target
	conns   map[net.Conn]struct{} // both sides of every pair
	closed  bool
}

type target struct {
	Target
	healthy bool
	against int // checks in a row that contradict healthy
}

// newBalancer serves until Close; all targets start as healthy.
func newBalancer(at where, addr string, targets []Target, cfg BalancerConfig) (*Balancer, error) {
	if len(targets) == 0 {
		return nil, errors.New("fleet: a balancer needs targets")
	}
	cfg.Interval, cfg.Timeout = cmp.Or(cfg.Interval, 250*time.Millisecond), cmp.Or(cfg.Timeout, time.Second)
	ln, err := at.listen(addr)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &Balancer{
		cfg: cfg, at: at, ln: ln, stop: stop, rng: rand.New(rand.NewPCG(cfg.Seed, 0xba1a)), conns: make(map[net.Conn]struct{}),
	}
	for _, t := range targets {
		tt := &target{Target: t, healthy: true}
		b.targets = append(b.targets, tt)
		b.work.Go(func() { b.watch(ctx, tt) })
	}
	b.work.Go(func() { b.accept(ctx) })
	return b, nil
}

func (b *Balancer) Addr() string { return b.ln.Addr().String() }

// Close resets open connections and waits for all goroutines. Idempotent.
func (b *Balancer) Close() error {
	b.stop()
	err := b.ln.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		reset(c)
	}
	b.mu.Unlock()
	b.work.Wait()
	return err
}

func (b *Balancer) healthy(_ context.Context, name string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.targets, func(t *target) bool { return t.Name == name })
	if i < 0 {
		return false, fmt.Errorf("balancer: no target %s", name)
	}
	return b.targets[i].healthy, nil
}

func (b *Balancer) died() error { return nil }

func (b *Balancer) watch(ctx context.Context, t *target) {
	ticker := time.NewTicker(b.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ok := b.ask(ctx, t.Addr)
		if ctx.Err() != nil {
			return
		}
		b.note(t, ok)
	}
}

// ask makes one check over a new connection; unlike http.Transport it leaves nothing behind.
func (b *Balancer) ask(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return false
	}
	req.Close = true
	c, err := b.at.dial(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })() // ends a blocked read or write
	if err := req.Write(c); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (b *Balancer) note(t *target, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok == t.healthy {
		t.against = 0
		return
	}
	if t.against++; t.against < streak {
		return
	}
	t.healthy, t.against = ok, 0
	b.cfg.Log.Info().Str("component", "balancer").Str("node", t.Name).Bool("healthy", ok).Msg("target changed")
}

// acceptPause lets a shortage of descriptors pass.
const acceptPause = 10 * time.Millisecond

func (b *Balancer) accept(ctx context.Context) {
	for {
		c, err := b.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the client left at once; both can pass
			b.cfg.Log.Warn().Str("component", "balancer").Err(err).Msg("not accepted")
			select {
			case <-ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		if !b.hold(c) {
			return
		}
		t := b.draw()
		b.work.Go(func() { b.carry(ctx, c, t) })
	}
}

func (b *Balancer) draw() *target {
	b.mu.Lock()
	defer b.mu.Unlock()
	up := slices.DeleteFunc(slices.Clone(b.targets), func(t *target) bool { return !t.healthy })
	if len(up) == 0 {
		up = b.targets
	}
	return up[b.rng.IntN(len(up))]
}

func (b *Balancer) hold(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		reset(c)
		return false
	}
	b.conns[c] = struct{}{}
	return true
}

func (b *Balancer) release(c net.Conn) {
	_ = c.Close()
	b.mu.Lock()
	delete(b.conns, c)
	b.mu.Unlock()
}

func (b *Balancer) carry(ctx context.Context, client net.Conn, t *target) {
	defer b.release(client)
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	server, err := b.at.dial(dialing, "tcp", t.Addr)
	cancel()
	if err != nil {
		reset(client)
		return
	}
	if !b.hold(server) {
		return
	}
	defer b.release(server)
	var up sync.WaitGroup
	up.Go(func() { pass(server, client) })
	pass(client, server)
	up.Wait()
}

// pass copies between connections. An error resets both, lest a broken message looks complete.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.(*net.TCPConn).CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0) // fails only on a closed socket
	_ = c.Close()
}

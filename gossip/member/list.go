// Package member maintains the fleet's membership and opens authenticated streams between nodes:
// memberlist, TLS streams on the same port, joining, healing of partitions, key rotation. See
// DESIGN.md.
package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
)

// Errors of a List.
var (
	ErrStopped     = errors.New("this node is not in a fleet: not started, or stopped")
	ErrUnconfirmed = errors.New("this node left before its peers confirmed it")
	ErrRefused     = errors.New("refuses this node")
	errLeaving     = errors.New("the node is leaving")
	errStarting    = errors.New("the node is starting")
	errStarted     = errors.New("the membership was started or stopped before: it starts once")
)

const leastLeave = 20 * time.Millisecond // memberlist takes 0 as no timeout

// List is this node's membership in a fleet; safe for concurrent use.
type List struct {
	cfg     Config
	net     network
	log     zerolog.Logger
	ring    *ring
	secure  *secure
	table   *table
	conns   conns
	seeds   *seeds
	streams map[string]*Streams // other protocols by ALPN; fixed by Listen

	attempts attempts
	refusals refusals

	self    atomic.Pointer[Info]
	group   atomic.Uint64
	leaving atomic.Bool

	mu        sync.Mutex
	state     lifeState
	goodbye   sync.Mutex // held while memberlist leaves or ends; taken before mu
	transport *transport
	members   *memberlist.Memberlist
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	stopping  chan struct{} // closed when Stop begins
	stopped   chan struct{} // closed when Stop is done
}

type lifeState uint8

const (
	lifeNew lifeState = iota
	lifeListening
	lifeRunning
	lifeStopped
)

// New checks cfg and reads the keys; it starts nothing.
func New(cfg Config) (*List, error) { return newList(cfg, hostNetwork{}) }

func newList(cfg Config, n network) (*List, error) {
	if cfg.Self.Incarnation == 0 {
		cfg.Self.Incarnation = uint64(time.Now().UnixMilli())
	}
	if err := cfg.Self.validate(); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip address: %w", err)
	}
	if err := checkOperator(cfg.TLS); err != nil {
		return nil, err
	}
	ring, err := newRing(cfg.Self.Name, cfg.Keys, cfg.KeyringFile)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ring.packets == nil && !cfg.Insecure && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("gossip on %s without a key admits every host: "+
			"make one with `grapevine keys generate` and give it to every node by --gossip-key-file (or set --gossip-insecure)", cfg.Bind)
	}
	cfg.ProbeInterval = cmp.Or(cfg.ProbeInterval, defaultProbeInterval)
	cfg.ProbeTimeout = cmp.Or(cfg.ProbeTimeout, defaultProbeTimeout)
	cfg.RejoinInterval = cmp.Or(cfg.RejoinInterval, defaultRejoinInterval)
	if cfg.ProbeTimeout >= cfg.ProbeInterval {
		return nil, fmt.Errorf("probe timeout %v must be shorter than the probe interval %v", cfg.ProbeTimeout, cfg.ProbeInterval)
	}
	cfg.Join, cfg.Keys = slices.Clone(cfg.Join), nil
	l := &List{
		cfg:      cfg,
		net:      n,
		log:      cfg.Log,
		ring:     ring,
		secure:   &secure{ring: ring, operator: cfg.TLS},
		streams:  make(map[string]*Streams),
		stopping: make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	l.refusals.log = limited(cfg.Log, 20, 20*time.Second)
	if l.seeds, err = newSeeds(cfg.Join); err != nil {
		return nil, err
	}
	l.conns.ring = ring
	l.attempts.known = make(map[string]Info)
	l.attempts.hints = make(map[string]Info)
	l.attempts.wake = make(chan struct{}, 1)
	l.self.Store(&cfg.Self)
	l.table = newTable(l.Self)
	return l, nil
}

// Listen binds the port for the protocols of Streams; ctx bounds the search for the address to
// advertise.
func (l *List) Listen(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listenLocked(ctx)
}

func (l *List) listenLocked(ctx context.Context) error {
	if l.state != lifeNew {
		return errStarted
	}
	t, err := newTransport(l.net, l.cfg.Bind, l.label(), l.log)
	if err != nil {
		return err
	}
	advert, err := l.advertise(ctx, t)
	if err != nil {
		_ = t.Shutdown()
		return err
	}
	t.advert = advert
	self := l.Self()
	self.Addr = advert.String()
	l.self.Store(&self)
	l.transport, l.state = t, lifeListening
	t.run(l.accept)
	return nil
}

func (l *List) label() string { return "grapevine/" + l.cfg.Self.Cluster }

// Describe changes this node's Info; it has no effect after Start.
func (l *List) Describe(change func(self *Info)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == lifeNew || l.state == lifeListening {
		self := l.Self()
		change(&self)
		l.self.Store(&self)
	}
}

// Start joins in the background (see Joined); ctx bounds only the start, and after an error the
// List is stopped.
func (l *List) Start(ctx context.Context) error {
	err := l.start(ctx)
	if err != nil && !errors.Is(err, errStarted) {
		_ = l.Stop(context.WithoutCancel(ctx))
	}
	return err
}

func (l *List) start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case lifeNew:
		if err := l.listenLocked(ctx); err != nil {
			return err
		}
	case lifeListening:
	default:
		return errStarted
	}
	if err := l.begin(); err != nil {
		return err
	}
	l.state = lifeRunning
	return nil
}

func (l *List) begin() error {
	self := l.Self()
	if err := self.validate(); err != nil {
		return err
	}
	if _, err := (&meta{Info: self, Leaving: true}).encode(); err != nil {
		return err
	}
	m, err := memberlist.Create(l.memberlistConfig(l.transport, l.label()))
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	l.members, l.cancel = m, cancel
	l.transport.gossip.Store(true)
	l.wg.Go(func() { l.tell(run) })
	l.wg.Go(func() { l.rejoin(run) })
	l.wg.Go(func() { l.seeds.watch(run) })
	return nil
}

// DESIGN.md derives the times of detection.
func (l *List) memberlistConfig(t *transport, label string) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = l.cfg.Self.Name
	c.Transport = t
	c.Label = label
	c.AdvertiseAddr = t.advert.Addr().String()
	c.AdvertisePort = int(t.advert.Port())
	c.BindPort = t.bound().Port
	c.ProbeInterval, c.ProbeTimeout = l.cfg.ProbeInterval, l.cfg.ProbeTimeout
	c.SuspicionMult = 3
	c.SuspicionMaxTimeoutMult = 3            // low: a dead process also ends its streams
	c.GossipInterval = 50 * time.Millisecond // a message takes four ticks per peer
	c.TCPTimeout = 5 * time.Second
	c.PushPullInterval = 15 * time.Second // repairs lost packets for 700 bytes per member
	c.EnableCompression = false           // short, mostly hashes
	c.DelegateProtocolMin, c.DelegateProtocolMax, c.DelegateProtocolVersion = 0, 0, 0
	c.Keyring = l.ring.packets
	c.DeadNodeReclaimTime = nameReclaim
	d := delegate{l}
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = d, d, d, d, d
	c.Logger = stdlog.New(logBridge{limited(l.log, 30, 10*time.Second)}, "", 0)
	return c
}

func (l *List) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.table.wake:
		}
		for _, e := range l.table.events() {
			line := l.log.Info()
			if e.Kind == Failed {
				line = l.log.Warn()
			}
			line.Str("event", string(e.Kind)).Str("peer", e.Member.Name).Str("addr", e.Member.Addr).Msg("membership changed")
			if l.cfg.OnEvent == nil {
				continue
			}
			if ctx.Err() != nil {
				return
			}
			l.cfg.OnEvent(e)
		}
	}
}

// Leave announces the end, or returns ErrUnconfirmed after timeout, when failed probes must show
// it; Stop follows.
func (l *List) Leave(timeout time.Duration) error {
	l.goodbye.Lock()
	defer l.goodbye.Unlock()
	if _, err := l.port(lifeRunning); err != nil {
		return err
	}
	if l.leaving.Swap(true) {
		return nil
	}
	// memberlist's events do not distinguish leaving from dying: the metadata goes first.
	end := time.Now().Add(timeout)
	err := l.members.UpdateNode(max(time.Until(end), leastLeave))
	if err = errors.Join(err, l.members.Leave(max(time.Until(end), leastLeave))); err != nil {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	return nil
}

// Stop closes all streams and waits for the goroutines, Serve included, until ctx ends; idempotent
// and final.
func (l *List) Stop(ctx context.Context) error {
	l.mu.Lock()
	was, t := l.state, l.transport
	l.state = lifeStopped
	if was != lifeStopped {
		close(l.stopping)
	}
	l.mu.Unlock()
	switch was {
	case lifeNew:
		close(l.stopped)
		return nil
	case lifeListening:
		go func() {
			defer close(l.stopped)
			l.conns.close()
			_ = t.Shutdown()
		}()
	case lifeRunning:
		go func() {
			defer close(l.stopped)
			l.cancel()
			l.table.close()
			l.conns.close()
			l.goodbye.Lock() // memberlist panics if Leave follows Shutdown
			defer l.goodbye.Unlock()
			_ = l.members.Shutdown()
			l.wg.Wait()
		}()
	}
	select {
	case <-l.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("gossip membership: %w", ctx.Err())
	}
}

func (l *List) port(least lifeState) (*transport, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state < least || l.state == lifeStopped {
		return nil, ErrStopped
	}
	return l.transport, nil
}

// Self returns this node's Info; Addr is set by Listen or Start.
func (l *List) Self() Info { return *l.self.Load() }

// SetGroup names the raft group of this node's data, 0 for none; nodes of different groups refuse
// each other's streams.
func (l *List) SetGroup(id uint64) { l.group.Store(id) }

func (l *List) meta() meta {
	c := meta{Info: l.Self(), Group: l.group.Load()}
	if id := l.ring.identity.Load(); len(id.keys) > 0 {
		c.Keys = id.prints
	}
	return c
}

// Members returns the other nodes by name, failed ones for an hour, those that left for ten
// minutes.
func (l *List) Members() []Status { return l.table.list() }

// Keys returns the ring, the primary first; without keys, the fingerprint of their substitute.
func (l *List) Keys() []Fingerprint { return l.ring.identity.Load().prints }

// Refused counts refusals since the start.
func (l *List) Refused() uint64 {
	l.refusals.mu.Lock()
	defer l.refusals.mu.Unlock()
	return l.refusals.total
}

package member

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// maxConns is a mesh of 1,000 nodes and some to spare.
	maxConns = 4096
	// maxConnsPerPeer bounds incoming streams of one name and protocol. The oldest, usually dead,
	// makes room.
	maxConnsPerPeer = 4
	// dialTimeout leaves room for one lost SYN.
	dialTimeout = 3 * time.Second
	// maxHandshakeBytes holds several operator chains; crypto/tls would read a quarter of a
	// megabyte.
	maxHandshakeBytes = 64 << 10
)

var errFull = fmt.Errorf("%d streams are open already", maxConns)

// Conn is an authenticated stream after the hello, without deadlines. Close is idempotent and safe
// for concurrent use.
type Conn struct {
	net.Conn
	// Peer is the other node's Info from the hello.
	Peer Info
	// Protocol is the highest common version.
	Protocol uint8

	raw      net.Conn
	incoming bool
	alpn     string
	keys     [2]Fingerprint // own, peer; zero with the operator's TLS
	set      *conns
	once     sync.Once
}

// Close does not wait for the peer to read earlier writes.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		if c.set != nil {
			c.set.remove(c)
		}
		err = c.raw.Close()
	})
	return err
}

type conns struct {
	ring *ring

	mu     sync.Mutex
	open   []*Conn
	closed bool
}

// add refuses a stream whose key left the ring since the handshake: dropForeign sees the stream, or
// add sees the new ring.
func (s *conns) add(c *Conn) error {
	var victim *Conn
	err := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return ErrStopped
		}
		if s.foreignLocked(c) {
			return errRemovedKey
		}
		if c.incoming && ownProtocol(c.alpn) {
			victim = s.excessLocked(c.Peer.Name, c.alpn)
		}
		if len(s.open) >= maxConns && victim == nil {
			return errFull
		}
		c.set = s
		s.open = append(s.open, c)
		return nil
	}()
	if victim != nil {
		_ = victim.Close()
	}
	return err
}

func (s *conns) excessLocked(name, alpn string) *Conn {
	var oldest *Conn
	n := 0
	for _, c := range s.open {
		if c.incoming && c.Peer.Name == name && c.alpn == alpn {
			if n++; oldest == nil {
				oldest = c
			}
		}
	}
	if n < maxConnsPerPeer {
		return nil
	}
	return oldest
}

func (s *conns) foreignLocked(c *Conn) bool {
	roots := s.ring.identity.Load().roots
	for _, k := range c.keys {
		if k != (Fingerprint{}) && roots[k] == nil {
			return true
		}
	}
	return false
}

// dropForeign closes the streams under removed keys, except key operations, whose answers must
// arrive.
func (s *conns) dropForeign() {
	s.mu.Lock()
	var out []*Conn
	for _, c := range s.open {
		if c.alpn != alpnKeys && s.foreignLocked(c) {
			out = append(out, c)
		}
	}
	s.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

func (s *conns) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.open {
		if x == c {
			s.open = append(s.open[:i], s.open[i+1:]...)
			return
		}
	}
}

func (s *conns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

func (s *conns) close() {
	s.mu.Lock()
	out := s.open
	s.open, s.closed = nil, true
	s.mu.Unlock()
	for _, c := range out {
		_ = c.Close()
	}
}

func (l *List) newConn(c *tls.Conn, raw net.Conn, proof *peerProof, peer *card, incoming bool) *Conn {
	return &Conn{
		Conn: c, Peer: peer.Info, Protocol: min(l.cfg.Self.ProtocolMax, peer.ProtocolMax),
		raw: raw, incoming: incoming, alpn: c.ConnectionState().NegotiatedProtocol,
		keys: [2]Fingerprint{proof.own, proof.key},
	}
}

// Dial opens a knowledge stream to a member of the same name; its incarnation may be newer.
func (l *List) Dial(ctx context.Context, peer Info) (*Conn, error) {
	c, err := l.dial(ctx, peer.Addr, alpnKnowledge)
	if err != nil {
		return nil, err
	}
	if c.Peer.Name != peer.Name {
		_ = c.Close()
		return nil, fmt.Errorf("%s: %q answers where %q was: %w", peer.Addr, c.Peer.Name, peer.Name, errNameless)
	}
	return c, nil
}

// dial opens a stream of any protocol. If the nodes refuse each other, the error names the
// difference.
func (l *List) dial(ctx context.Context, addr, alpn string) (*Conn, error) {
	t, err := l.running()
	if err != nil {
		return nil, err
	}
	raw, err := t.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	c, err := l.shake(ctx, raw, addr, alpn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if c != nil {
			_ = c.Close()
		}
		closeGently(raw)
		if ctx.Err() != nil {
			err = fmt.Errorf("%s: %w", addr, context.Cause(ctx))
		}
		return nil, err
	}
	return c, nil
}

func (l *List) shake(ctx context.Context, raw net.Conn, addr, alpn string) (*Conn, error) {
	_ = raw.SetDeadline(time.Now().Add(l.cfg.handshake))
	conn, proof, err := l.secure.client(ctx, raw, addr, alpn)
	if err != nil {
		return nil, err
	}
	peer, err := l.greet(conn, addr, proof)
	if err != nil {
		return nil, err
	}
	c := l.newConn(conn, raw, proof, &peer, false)
	if err := l.conns.add(c); err != nil {
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	_ = raw.SetDeadline(time.Time{})
	return c, nil
}

// accept authenticates an accepted connection and serves it.
func (l *List) accept(x *gated) {
	host := x.from.String()
	c, err := l.welcome(x, host)
	if err != nil {
		l.failed.Add(1)
		closeGently(x.Conn) // before leave: a refused peer counts while it lingers
		x.leave()
		l.log.Debug().Str("addr", host).Err(err).Msg("stream not accepted")
		return
	}
	x.leave()
	if s := l.streams[c.alpn]; s != nil {
		s.hand(c)
		return
	}
	defer func() { _ = c.Close() }()
	if c.alpn != alpnHello { // a dialer that only asks is about to join by itself
		l.hint(&c.Peer)
	}
	switch c.alpn {
	case alpnHello:
		closeGently(x.Conn) // the dialer closes first
	case alpnKeys:
		l.serveKeys(c)
	case alpnKnowledge:
		_ = x.raw.SetDeadline(time.Time{})
		if l.cfg.Serve != nil {
			l.cfg.Serve(c)
		}
	}
}

func (l *List) protocols() []string {
	return append([]string{alpnKnowledge, alpnKeys, alpnHello}, slices.Sorted(maps.Keys(l.streams))...)
}

// welcome returns the stream, or records and returns the reason for refusing it.
func (l *List) welcome(x *gated, host string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.handshake)
	defer cancel()
	in := &bounded{Conn: x.Conn, left: maxHandshakeBytes}
	conn, proof, err := l.secure.server(ctx, in, host, l.protocols())
	if err != nil {
		l.noteMismatch(host, "", err)
		return nil, err
	}
	if !ownProtocol(conn.ConnectionState().NegotiatedProtocol) {
		if err := l.ofMember(proof); err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		in.known = true
		_ = x.raw.SetDeadline(time.Time{})
		c := l.newConn(conn, x.raw, proof, &card{Info: Info{Name: proof.cert.Subject.CommonName}}, true)
		return c, l.conns.add(c)
	}
	peer, err := l.answer(conn, host, proof)
	if err != nil {
		if peer.Addr != "" {
			host = peer.Addr
		}
		l.noteMismatch(host, peer.Name, err)
		return nil, err
	}
	in.known = true
	c := l.newConn(conn, x.raw, proof, &peer, true)
	if c.alpn == alpnHello {
		return c, nil // a knock ends with the hello
	}
	return c, l.conns.add(c)
}

// bounded delivers only left bytes until known is set.
type bounded struct {
	net.Conn
	left  int
	known bool
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.known {
		return b.Conn.Read(p)
	}
	if b.left == 0 {
		return 0, errLongHandshake
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

var errLongHandshake = fmt.Errorf("no handshake within %d bytes", maxHandshakeBytes)

// noteMismatch records refusals that need an operator.
func (l *List) noteMismatch(addr, name string, err error) {
	if mismatch := (*MismatchError)(nil); errors.As(err, &mismatch) || l.cfg.TLS != nil && !errors.Is(err, errLeaving) && !errors.Is(err, errStarting) && name != "" {
		l.refused(addr, name, err)
	}
}

// knock finds out which node is at addr and whether both can be in one fleet.
func (l *List) knock(ctx context.Context, addr string) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no answer within %v", dialTimeout))
	defer cancel()
	c, err := l.dial(ctx, addr, alpnHello)
	if err != nil {
		return Info{}, err
	}
	return c.Peer, c.Close()
}

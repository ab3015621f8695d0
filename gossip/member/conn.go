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
	maxConns = 4096 // a mesh of 1,000 nodes
	// Incoming streams of one name and protocol; the oldest, usually dead, makes room.
	maxConnsPerPeer = 4
	probeTimeout    = 3 * time.Second // room for one lost SYN
)

var errFull = fmt.Errorf("%d streams are open already", maxConns)

// Conn is an authenticated stream without deadlines; Close is idempotent and safe for concurrent
// use.
type Conn struct {
	net.Conn
	// From the hello; protocols of Streams have only the certificate's name.
	Peer Info

	raw      net.Conn
	incoming bool
	alpn     string
	keys     [2]Fingerprint // own, peer; zero with the operator's TLS
	set      *conns
	once     sync.Once
}

// Close does not wait until the peer has read earlier writes.
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

// The oldest stream is first.
type conns struct {
	ring *ring

	mu     sync.Mutex
	open   []*Conn
	closed bool
}

// add refuses a stream whose key left the ring since the handshake: closeRemoved sees the stream,
// or add sees the new ring.
func (s *conns) add(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(x *Conn) bool { return x.incoming && x.Peer.Name == c.Peer.Name && x.alpn == c.alpn }
	count := 0
	for _, x := range s.open {
		if same(x) {
			count++
		}
	}
	switch {
	case s.closed:
		return ErrStopped
	case s.removedLocked(c):
		return errRemovedKey
	case c.incoming && ownProtocol(c.alpn) && count >= maxConnsPerPeer:
		oldest := slices.IndexFunc(s.open, same)
		_ = s.open[oldest].raw.Close() // its owner calls Close, which takes the lock
		s.open = slices.Delete(s.open, oldest, oldest+1)
	case len(s.open) >= maxConns:
		return errFull
	}
	c.set = s
	s.open = append(s.open, c)
	return nil
}

func (s *conns) removedLocked(c *Conn) bool {
	roots := s.ring.identity.Load().roots
	return slices.ContainsFunc(c.keys[:], func(k Fingerprint) bool { return k != Fingerprint{} && roots[k] == nil })
}

// closeRemoved spares key operations, whose answers must arrive.
func (s *conns) closeRemoved() {
	s.mu.Lock()
	open := slices.Clone(s.open)
	open = slices.DeleteFunc(open, func(c *Conn) bool { return c.alpn == alpnKeys || !s.removedLocked(c) })
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

func (s *conns) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(x *Conn) bool { return x == c })
}

func (s *conns) close() {
	s.mu.Lock()
	open := s.open
	s.open, s.closed = nil, true
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// Dial opens a knowledge stream to the member of that name; its incarnation may be newer.
func (l *List) Dial(ctx context.Context, peer Info) (*Conn, error) {
	c, err := l.dial(ctx, peer.Addr, alpnKnowledge)
	if err != nil {
		return nil, err
	}
	if c.Peer.Name != peer.Name {
		_ = c.Close()
		return nil, fmt.Errorf("%s: %q answers where %q was", peer.Addr, c.Peer.Name, peer.Name)
	}
	return c, nil
}

// The error names the difference if the nodes refuse each other.
func (l *List) dial(ctx context.Context, addr, alpn string) (*Conn, error) {
	least := lifeListening
	if ownProtocol(alpn) {
		least = lifeRunning
	}
	t, err := l.port(least)
	if err != nil {
		return nil, err
	}
	raw, err := t.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	c, err := l.authenticate(ctx, raw, addr, alpn)
	if !stop() {
		err = fmt.Errorf("%s: %w", addr, context.Cause(ctx))
	}
	if err == nil {
		err = l.conns.add(c)
	}
	if err != nil {
		closeGently(raw)
		return nil, err
	}
	return c, nil
}

func (l *List) authenticate(ctx context.Context, raw net.Conn, addr, alpn string) (*Conn, error) {
	_ = raw.SetDeadline(time.Now().Add(handshakeTimeout))
	conn, proof, err := l.secure.client(ctx, raw, addr, alpn)
	if err != nil {
		return nil, err
	}
	peer, err := Info{Name: proof.cert.Subject.CommonName}, error(nil)
	if ownProtocol(alpn) {
		peer, err = l.greet(conn, addr, proof)
	} else {
		err = l.ofMember(proof)
	}
	_ = raw.SetDeadline(time.Time{})
	return newConn(conn, raw, proof, peer, false), err
}

func newConn(c *tls.Conn, raw net.Conn, proof *peerProof, peer Info, incoming bool) *Conn {
	return &Conn{
		Conn: c, Peer: peer, raw: raw, incoming: incoming, alpn: c.ConnectionState().NegotiatedProtocol,
		keys: [2]Fingerprint{proof.own, proof.key},
	}
}

func (l *List) accept(x *inbound) {
	host := x.from.String()
	c, err := l.welcome(x, host)
	if err != nil {
		closeGently(x) // before leave: a refused peer counts while it lingers
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
	if c.alpn != alpnHello { // a dialer that only probes is about to join by itself
		l.hint(&c.Peer)
	}
	switch c.alpn {
	case alpnHello:
		closeGently(x) // the dialer closes first
	case alpnKeys:
		l.serveKeys(c)
	case alpnKnowledge:
		_ = x.SetDeadline(time.Time{})
		if l.cfg.Serve != nil {
			l.cfg.Serve(c)
		}
	}
}

// welcome records why it refuses a stream.
func (l *List) welcome(x *inbound, host string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	protocols := append([]string{alpnKnowledge, alpnKeys, alpnHello}, slices.Sorted(maps.Keys(l.streams))...)
	conn, proof, err := l.secure.server(ctx, x, host, protocols)
	if err != nil {
		l.noteMismatch(host, "", err)
		return nil, err
	}
	peer := Info{Name: proof.cert.Subject.CommonName}
	if own := ownProtocol(conn.ConnectionState().NegotiatedProtocol); own {
		if peer, err = l.answer(conn, host, proof); err != nil {
			if peer.Addr != "" {
				host = peer.Addr
			}
			l.noteMismatch(host, peer.Name, err)
			return nil, err
		}
	} else {
		if err := l.ofMember(proof); err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		_ = x.SetDeadline(time.Time{})
	}
	x.left = -1
	c := newConn(conn, x, proof, peer, true)
	if c.alpn == alpnHello {
		return c, nil // ends with the hello
	}
	return c, l.conns.add(c)
}

// noteMismatch records refusals that need an operator.
func (l *List) noteMismatch(addr, name string, err error) {
	_, mismatch := errors.AsType[*MismatchError](err)
	if mismatch || l.cfg.TLS != nil && !errors.Is(err, errLeaving) && !errors.Is(err, errStarting) && name != "" {
		l.refused(addr, name, err)
	}
}

func (l *List) probe(ctx context.Context, addr string) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %v", probeTimeout))
	defer cancel()
	c, err := l.dial(ctx, addr, alpnHello)
	if err != nil {
		return Info{}, err
	}
	return c.Peer, c.Close()
}

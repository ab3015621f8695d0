package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

var errNotListening = errors.New("the fleet's port is not open")

// Streams is a net.Listener for one other protocol on gossip's port and TLS, selected by ALPN. The
// protocol identifies its peers itself. Removing a key closes the connections under it. Safe for
// concurrent use.
type Streams struct {
	list     *List
	alpn     string
	incoming chan *Conn
	closed   chan struct{}
	once     sync.Once
}

var _ net.Listener = (*Streams)(nil)

// Streams registers a protocol by its ALPN name. It panics after Listen, or for a name in use.
func (l *List) Streams(alpn string) *Streams {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != lifeNew || l.streams[alpn] != nil || ownProtocol(alpn) {
		panic("member: protocol " + alpn + " is registered too late or twice")
	}
	s := &Streams{list: l, alpn: alpn, incoming: make(chan *Conn), closed: make(chan struct{})}
	l.streams[alpn] = s
	return s
}

// Accept returns net.ErrClosed after Close or List.Stop.
func (s *Streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.incoming:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	case <-s.list.stopping:
		return nil, net.ErrClosed
	}
}

// Dial connects to the node at addr, host:port. ctx bounds only the dialing.
func (s *Streams) Dial(ctx context.Context, addr string) (net.Conn, error) {
	l := s.list
	t, err := l.listening()
	if err != nil {
		return nil, err
	}
	raw, err := t.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	conn, proof, err := l.secure.client(ctx, raw, addr, s.alpn)
	if err == nil {
		err = l.ofMember(proof)
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	c := l.newConn(conn, raw, proof, &card{Info: Info{Name: proof.cert.Subject.CommonName}}, false)
	if err := l.conns.add(c); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return c, nil
}

// Addr returns the address that other nodes dial, known after Listen.
func (s *Streams) Addr() net.Addr { return streamsAddr(s.list.Self().Addr) }

// Close ends Accept; connections stay open.
func (s *Streams) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *Streams) hand(c *Conn) {
	select {
	case s.incoming <- c:
	case <-s.closed:
		_ = c.Close()
	case <-s.list.stopping:
		_ = c.Close()
	}
}

type streamsAddr string

func (streamsAddr) Network() string  { return "tcp" }
func (a streamsAddr) String() string { return string(a) }

// ofMember returns an error if an operator's certificate fits no member: the authority may serve
// other services.
func (l *List) ofMember(proof *peerProof) error {
	if l.secure.operator == nil {
		return nil
	}
	good := func(m *Info) bool {
		host, _, err := net.SplitHostPort(m.Addr)
		return err == nil && l.secure.named(proof, m.Name, host) == nil
	}
	if self := l.Self(); good(&self) {
		return nil
	}
	members := l.Members()
	for i := range members {
		if good(&members[i].Info) {
			return nil
		}
	}
	return fmt.Errorf("the certificate of %q belongs to no member", clean(proof.cert.Subject.CommonName, maxName))
}

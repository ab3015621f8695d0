package member

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Streams is a net.Listener for another protocol on gossip's port and TLS, selected by ALPN. Safe
// for concurrent use.
type Streams struct {
	list     *List
	alpn     string
	incoming chan *Conn
	closed   chan struct{}
	once     sync.Once
}

var _ net.Listener = (*Streams)(nil)

// Streams registers an ALPN name; it panics after Listen, or for a name in use.
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
	case <-s.list.stopping:
	}
	return nil, net.ErrClosed
}

// Dial connects to the node at addr, host:port; ctx bounds only the dialing.
func (s *Streams) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := s.list.dial(ctx, addr, s.alpn)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Addr returns the address that other nodes dial, known after Listen.
func (s *Streams) Addr() net.Addr {
	t, err := s.list.port(lifeListening)
	if err != nil {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(t.advert)
}

// Close ends Accept; connections stay open.
func (s *Streams) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *Streams) hand(c *Conn) {
	select {
	case s.incoming <- c:
		return
	case <-s.closed:
	case <-s.list.stopping:
	}
	_ = c.Close()
}

// An operator's authority may serve other services, too.
func (l *List) ofMember(proof *peerProof) error {
	if l.secure.operator == nil {
		return nil
	}
	for _, m := range append(l.Members(), Status{Info: l.Self()}) {
		host, _, err := net.SplitHostPort(m.Addr)
		if err == nil && l.secure.named(proof, m.Name, host) == nil {
			return nil
		}
	}
	return fmt.Errorf("the certificate of %q belongs to no member", clean(proof.cert.Subject.CommonName, maxName))
}

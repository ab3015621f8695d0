package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
)

const (
	firstTLS   = 0x16 // memberlist's streams always have a label
	firstLabel = 244

	// For starved machines: authentication takes a millisecond of CPU. The first byte must come in
	// half.
	handshakeTimeout  = 10 * time.Second
	maxHandshakeBytes = 64 << 10 // several operator chains; crypto/tls would read 256 KB
	maxHandshakes     = 256      // unauthenticated, of some 100 KB each

	streamTimeout = 20 * time.Second // a ping or an exchange of state
	maxStreams    = 64
	// Of one stream, the state of 4,000 nodes, and of all: memberlist buffers a whole message
	// before it checks the sender's key.
	maxStreamBytes   = 4 << 20
	maxBufferedBytes = 16 << 20

	maxPacket   = 4096 // beyond memberlist's 1400 bytes and the label
	packetQueue = 1024
)

// transport carries memberlist's traffic and TLS streams on one port, told apart by the first byte.
type transport struct {
	label string
	serve func(c *inbound) // takes over a TLS connection
	log   zerolog.Logger

	net network
	tcp net.Listener
	udp packetConn

	packets chan *memberlist.Packet
	streams chan net.Conn

	handshakes gate
	incoming   gate // memberlist's streams
	advert     netip.AddrPort

	mu       sync.Mutex
	open     map[*stream]struct{} // memberlist's streams, both directions
	buffered int

	gossip atomic.Bool // memberlist runs; earlier packets and streams are dropped

	ctx   context.Context // ends with the transport
	close context.CancelFunc
	wg    sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(n network, bind, label string, log zerolog.Logger) (*transport, error) {
	tcp, udp, err := n.listen(bind)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	t := &transport{
		label: label, log: log, net: n, tcp: tcp, udp: udp,
		packets: make(chan *memberlist.Packet, packetQueue), streams: make(chan net.Conn),
		handshakes: gate{limit: maxHandshakes}, incoming: gate{limit: maxStreams},
		open: make(map[*stream]struct{}),
	}
	t.ctx, t.close = context.WithCancel(context.Background())
	return t, nil
}

// serve runs in a goroutine that Shutdown waits for.
func (t *transport) run(serve func(c *inbound)) {
	t.serve = serve
	t.wg.Go(t.accept)
	t.wg.Go(t.receive)
}

func (t *transport) bound() *net.TCPAddr { return t.tcp.Addr().(*net.TCPAddr) }

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advert.Addr().AsSlice(), int(t.advert.Port()), nil
}

// receive never waits for memberlist.
func (t *transport) receive() {
	buf := make([]byte, maxPacket+1)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if err != nil {
			t.log.Debug().Err(err).Msg("packet not received")
			if !sleep(t.ctx, 10*time.Millisecond) {
				return
			}
			continue
		}
		if n > maxPacket || !t.labelled(buf[:n]) || !t.gossip.Load() {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		p := &memberlist.Packet{
			Buf:       append(make([]byte, 0, n), buf[:n]...),
			From:      net.UDPAddrFromAddrPort(from),
			Timestamp: at,
		}
		select {
		case t.packets <- p:
		default: // memberlist is too slow; it repeats what matters
		}
	}
}

func (t *transport) labelled(b []byte) bool {
	return len(b) > 2+len(t.label) && b[0] == firstLabel && int(b[1]) == len(t.label) && string(b[2:2+len(t.label)]) == t.label
}

func (t *transport) accept() {
	for {
		c, err := t.tcp.Accept()
		if err != nil {
			if t.ctx.Err() == nil {
				t.log.Warn().Err(err).Msg("gossip connection not accepted")
			}
			if !sleep(t.ctx, 50*time.Millisecond) { // usually out of file descriptors
				return
			}
			continue
		}
		x := newInbound(c)
		t.handshakes.admit(x)
		t.wg.Go(func() { t.route(x) })
	}
}

func (t *transport) route(x *inbound) {
	now := time.Now()
	_ = x.SetDeadline(now.Add(handshakeTimeout / 2))
	first := make([]byte, 1)
	_, err := io.ReadFull(x.Conn, first)
	_ = x.SetDeadline(now.Add(handshakeTimeout))
	x.first = first
	switch {
	case err == nil && first[0] == firstTLS:
		x.left = maxHandshakeBytes
		t.serve(x)
		return
	case err == nil && first[0] == firstLabel && t.gossip.Load():
		x.leave()
		t.incoming.admit(x)
		if s := t.newStream(x); s != nil {
			select {
			case t.streams <- s:
			case <-t.ctx.Done():
				_ = s.Close()
			}
		}
		return
	}
	x.leave()
	_ = x.Close()
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := t.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	s := t.newStream(newInbound(c))
	if s == nil {
		return nil, net.ErrClosed
	}
	return s, nil
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

func (t *transport) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	return t.net.dial(ctx, addr)
}

// Shutdown closes all but authenticated streams and waits for the transport's goroutines;
// idempotent.
func (t *transport) Shutdown() error {
	t.close()
	_ = t.tcp.Close()
	_ = t.udp.Close()
	t.mu.Lock()
	for s := range t.open {
		_ = s.inbound.Close()
	}
	t.mu.Unlock()
	t.handshakes.closeAll()
	t.incoming.closeAll()
	t.wg.Wait()
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

type stream struct {
	*inbound
	t     *transport
	until time.Time
	read  int // bytes; under t.mu
}

var errTooMuch = errors.New("more bytes than a fleet's state takes")

func (t *transport) newStream(x *inbound) *stream {
	s := &stream{inbound: x, t: t, until: time.Now().Add(streamTimeout)}
	_ = s.SetDeadline(s.until)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		_ = x.Close()
		return nil
	}
	t.open[s] = struct{}{}
	return s
}

// charge reports whether the stream may continue. If all hold too much, the fullest closes, so that
// strangers cannot block members.
func (t *transport) charge(s *stream, n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.open[s]; !ok {
		return false
	}
	s.read += n
	t.buffered += n
	if s.read > maxStreamBytes {
		t.releaseLocked(s)
	}
	for t.buffered > maxBufferedBytes {
		fullest := s
		for other := range t.open {
			if other.read > fullest.read {
				fullest = other
			}
		}
		t.releaseLocked(fullest)
		_ = fullest.inbound.Close()
	}
	_, ok := t.open[s]
	return ok
}

func (t *transport) releaseLocked(s *stream) {
	delete(t.open, s)
	t.buffered -= s.read
	s.read = 0
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.inbound.Read(b)
	if n > 0 && !s.t.charge(s, n) {
		return 0, errTooMuch
	}
	return n, err
}

func (s *stream) SetDeadline(d time.Time) error {
	if d.IsZero() || d.After(s.until) {
		d = s.until
	}
	return s.inbound.SetDeadline(d)
}

func (s *stream) Close() error {
	s.leave()
	s.t.mu.Lock()
	s.t.releaseLocked(s)
	s.t.mu.Unlock()
	return s.inbound.Close()
}

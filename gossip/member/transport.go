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
	// memberlist's streams begin with firstLabel, because they always have a label here.
	firstTLS   = 0x16
	firstLabel = 244

	// handshakeTimeout allows for starved machines; authentication takes a millisecond of CPU.
	handshakeTimeout = 10 * time.Second
	// streamTimeout bounds one memberlist stream: a ping or an exchange of state.
	streamTimeout = 20 * time.Second

	// maxHandshakes bounds unauthenticated connections, of some 100 KB each.
	maxHandshakes = 256
	maxStreams    = 64
	// maxStreamBytes bounds the bytes of one memberlist stream: the state of 4,000 nodes.
	// maxBufferedBytes bounds all together, because memberlist buffers a whole message before it
	// checks the sender's key.
	maxStreamBytes   = 4 << 20
	maxBufferedBytes = 16 << 20

	// maxPacket exceeds memberlist's 1400 bytes and the label.
	maxPacket   = 4096
	packetQueue = 1024
	// udpBuffer is for bursts, in bytes.
	udpBuffer = 2 << 20
)

var errCut = errors.New("cut off by the test")

// transport carries memberlist's packets and streams and this package's TLS streams on one port,
// told apart by the first byte.
type transport struct {
	label string
	cut   func(addr string) bool
	serve func(c *gated) // takes over a TLS connection
	log   zerolog.Logger
	// handshake bounds authentication; the first byte must come in half of it.
	handshake time.Duration

	tcp *net.TCPListener
	udp *net.UDPConn

	packets chan *memberlist.Packet
	streams chan net.Conn

	handshakes gate
	incoming   gate // memberlist's streams
	advert     netip.AddrPort

	mu       sync.Mutex
	open     map[*stream]struct{} // memberlist's streams, both directions
	buffered int

	gossip         atomic.Bool // memberlist runs; earlier packets and streams are dropped
	stray, dropped atomic.Uint64

	closing chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func listen(bind string) (*net.TCPListener, *net.UDPConn, error) {
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, nil, err
	}
	// A port that is free for TCP may be taken for UDP.
	tries := 1
	if port == "0" {
		tries = 20
	}
	for {
		l, err := net.Listen("tcp", bind)
		if err != nil {
			return nil, nil, err
		}
		tcp := l.(*net.TCPListener)
		at := tcp.Addr().(*net.TCPAddr)
		p, err := net.ListenPacket("udp", net.JoinHostPort(host, fmt.Sprint(at.Port)))
		if err == nil {
			return tcp, p.(*net.UDPConn), nil
		}
		_ = tcp.Close()
		if tries--; tries == 0 {
			return nil, nil, err
		}
	}
}

func newTransport(cfg *Config, label string) (*transport, error) {
	tcp, udp, err := listen(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	// A smaller buffer only loses more of a burst.
	_ = udp.SetReadBuffer(udpBuffer)
	return &transport{
		label:      label,
		cut:        cfg.Cut,
		log:        cfg.Log,
		handshake:  cfg.handshake,
		tcp:        tcp,
		udp:        udp,
		packets:    make(chan *memberlist.Packet, packetQueue),
		streams:    make(chan net.Conn),
		handshakes: gate{limit: maxHandshakes},
		incoming:   gate{limit: maxStreams},
		open:       make(map[*stream]struct{}),
		closing:    make(chan struct{}),
	}, nil
}

// run starts receiving. serve gets each TLS connection in a goroutine that Shutdown waits for.
func (t *transport) run(serve func(c *gated)) {
	t.serve = serve
	t.wg.Go(t.accept)
	t.wg.Go(t.receive)
}

func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

func (t *transport) setAdvertise(a netip.AddrPort) { t.advert = a }

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advert.Addr().AsSlice(), int(t.advert.Port()), nil
}

// receive reads packets; it never waits for memberlist.
func (t *transport) receive() {
	buf := make([]byte, maxPacket+1)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if err != nil {
			if t.closed() {
				return
			}
			t.log.Debug().Err(err).Msg("packet not received")
			if !t.pause(10 * time.Millisecond) {
				return
			}
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if n > maxPacket || !t.labelled(buf[:n]) {
			t.stray.Add(1)
			continue
		}
		if !t.gossip.Load() || t.cut != nil && t.cut(from.String()) {
			continue
		}
		p := &memberlist.Packet{
			Buf:       append(make([]byte, 0, n), buf[:n]...),
			From:      net.UDPAddrFromAddrPort(from),
			Timestamp: at,
		}
		select {
		case t.packets <- p:
		default:
			t.dropped.Add(1)
		}
	}
}

// labelled keeps strangers out of memberlist's log.
func (t *transport) labelled(b []byte) bool {
	return len(b) > 2+len(t.label) && b[0] == firstLabel && int(b[1]) == len(t.label) && string(b[2:2+len(t.label)]) == t.label
}

func (t *transport) accept() {
	for {
		c, err := t.tcp.AcceptTCP()
		if err != nil {
			if t.closed() {
				return
			}
			t.log.Warn().Err(err).Msg("gossip connection not accepted")
			if !t.pause(50 * time.Millisecond) { // usually out of file descriptors
				return
			}
			continue
		}
		x := t.handshakes.admit(c)
		t.wg.Go(func() { t.sort(x) })
	}
}

func (t *transport) sort(x *gated) {
	now := time.Now()
	_ = x.SetDeadline(now.Add(t.handshake / 2))
	var first [1]byte
	if _, err := io.ReadFull(x.raw, first[:]); err != nil {
		x.leave()
		_ = x.raw.Close()
		return
	}
	_ = x.SetDeadline(now.Add(t.handshake))
	switch first[0] {
	case firstTLS:
		x.Conn = &peeked{Conn: x.raw, first: first[:]}
		t.serve(x)
	case firstLabel:
		x.leave()
		if !t.gossip.Load() {
			_ = x.raw.Close()
			return
		}
		t.hand(&peeked{Conn: x.raw, first: first[:]})
	default:
		t.stray.Add(1)
		x.leave()
		_ = x.raw.Close()
	}
}

func (t *transport) hand(c net.Conn) {
	s := t.newStream(c, t.incoming.admit(c))
	if s == nil {
		return
	}
	select {
	case t.streams <- s:
	case <-t.closing:
		_ = s.Close()
	}
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if t.cut != nil && t.cut(a.Addr) {
		return time.Now(), nil // like a network that loses the packet
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := t.dial(ctx, a.Addr)
	if err != nil {
		return nil, err
	}
	s := t.newStream(c, nil)
	if s == nil {
		return nil, net.ErrClosed
	}
	return s, nil
}

// dial ends with ctx or with the transport.
func (t *transport) dial(ctx context.Context, addr string) (net.Conn, error) {
	if t.cut != nil && t.cut(addr) {
		return nil, errCut
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-t.closing:
			cancel()
		case <-done:
		}
	}()
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// Shutdown implements memberlist.Transport: it closes all but authenticated streams and returns
// when the transport's goroutines have ended. Idempotent.
func (t *transport) Shutdown() error {
	t.once.Do(func() {
		close(t.closing)
		_ = t.tcp.Close()
		_ = t.udp.Close()
		t.mu.Lock()
		for s := range t.open {
			_ = s.Conn.Close()
		}
		t.mu.Unlock()
	})
	// A connection may have been accepted meanwhile.
	t.handshakes.closeAll()
	t.incoming.closeAll()
	t.wg.Wait()
	return nil
}

func (t *transport) closed() bool {
	select {
	case <-t.closing:
		return true
	default:
		return false
	}
}

// pause reports false if the transport closed.
func (t *transport) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.closing:
		return false
	case <-timer.C:
		return true
	}
}

// stream is one of memberlist's streams, bounded in time and bytes.
type stream struct {
	net.Conn
	t     *transport
	gated *gated
	until time.Time
	read  int // bytes; under t.mu
}

var errTooMuch = errors.New("more bytes than a fleet's state takes")

// newStream returns nil, and closes c, if the transport is closed.
func (t *transport) newStream(c net.Conn, x *gated) *stream {
	s := &stream{Conn: c, t: t, gated: x, until: time.Now().Add(streamTimeout)}
	_ = s.SetDeadline(s.until)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed() {
		_ = c.Close()
		return nil
	}
	t.open[s] = struct{}{}
	return s
}

// charge counts n bytes read and reports whether the stream may continue. If all streams hold too
// much, the fullest closes, so that strangers cannot block members' smaller exchanges.
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
		worst := s
		for other := range t.open {
			if other.read > worst.read {
				worst = other
			}
		}
		t.releaseLocked(worst)
		_ = worst.Conn.Close()
	}
	_, ok := t.open[s]
	return ok
}

func (t *transport) releaseLocked(s *stream) {
	delete(t.open, s)
	t.buffered -= s.read
	s.read = 0
}

func (t *transport) held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buffered
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 && !s.t.charge(s, n) {
		return 0, errTooMuch
	}
	return n, err
}

func (s *stream) SetDeadline(d time.Time) error {
	if d.IsZero() || d.After(s.until) {
		d = s.until
	}
	return s.Conn.SetDeadline(d)
}

func (s *stream) Close() error {
	if s.gated != nil {
		s.gated.leave()
	}
	s.t.mu.Lock()
	s.t.releaseLocked(s)
	s.t.mu.Unlock()
	return s.Conn.Close()
}

// peeked is a connection whose first byte was read already.
type peeked struct {
	net.Conn
	first []byte
}

func (p *peeked) Read(b []byte) (int, error) {
	if len(p.first) > 0 && len(b) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

func (p *peeked) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

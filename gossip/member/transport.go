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
	// firstTLS is the first byte of a TLS record that holds a handshake.
	// memberlist's streams begin with firstLabel, because ours always have a label.
	firstTLS   = 0x16
	firstLabel = 244

	// handshakeTimeout bounds all until a connection has shown who it is. A
	// handshake takes a few round trips and about a millisecond of CPU; the rest
	// is for starved machines.
	handshakeTimeout = 10 * time.Second
	// streamTimeout bounds the life of one of memberlist's streams, whatever
	// deadline it sets itself: it carries one ping or one exchange of state.
	streamTimeout = 20 * time.Second

	// maxHandshakes bounds connections that have not shown who they are. Each
	// costs a goroutine and, what it may send included, some 100 KB, so 25 MB in all.
	maxHandshakes = 256
	// maxStreams bounds memberlist's incoming streams.
	maxStreams = 64
	// maxStreamBytes bounds what is read from one of memberlist's streams: the
	// state of a fleet of 4,000 nodes. maxBufferedBytes bounds it for all of
	// them together, since memberlist reads a message into memory before it can
	// tell whether the sender has the key.
	maxStreamBytes   = 4 << 20
	maxBufferedBytes = 16 << 20

	// maxPacket is more than memberlist ever sends us in one packet: 1400
	// bytes and the label.
	maxPacket = 4096
	// packetQueue is how many packets may wait for memberlist.
	packetQueue = 1024
	// udpBuffer is asked of the kernel for bursts of packets, in bytes.
	udpBuffer = 2 << 20
)

var errCut = errors.New("cut off by the test")

// transport carries memberlist's packets and streams, and this package's TLS
// streams, on one port. The first byte of a stream says whose it is.
type transport struct {
	label string                 // of memberlist's packets and streams
	cut   func(addr string) bool // Config.Cut; may be nil
	serve func(c *gated)         // takes over a connection that begins like TLS
	log   zerolog.Logger
	// handshake bounds the time until a connection has shown who it is; for
	// its first byte there is half of it.
	handshake time.Duration

	tcp *net.TCPListener
	udp *net.UDPConn

	packets chan *memberlist.Packet
	streams chan net.Conn

	handshakes gate
	incoming   gate // memberlist's streams
	advert     netip.AddrPort

	mu       sync.Mutex
	open     map[*stream]struct{} // memberlist's streams, both ways
	buffered int                  // bytes read from them

	gossip         atomic.Bool // memberlist runs; until then its packets and streams are dropped
	stray, dropped atomic.Uint64

	closing chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// listen binds TCP and UDP to the same port.
func listen(bind string) (*net.TCPListener, *net.UDPConn, error) {
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, nil, err
	}
	// A port that is free for TCP may be taken for UDP, so any port is tried
	// several times, a given one once.
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
	// A smaller buffer than asked for only makes bursts lossier.
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

// run starts to receive. serve takes over TLS connections, each in a goroutine
// of its own that Shutdown waits for.
func (t *transport) run(serve func(c *gated)) {
	t.serve = serve
	t.wg.Go(t.accept)
	t.wg.Go(t.receive)
}

// port is the bound port.
func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// setAdvertise says what others dial.
func (t *transport) setAdvertise(a netip.AddrPort) { t.advert = a }

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advert.Addr().AsSlice(), int(t.advert.Port()), nil
}

// receive reads packets until the transport closes. It never waits for memberlist.
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
			// Only a broken socket fails again and again; do not spin on it.
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

// labelled reports whether a packet claims to be of our fleet. memberlist looks
// again; this keeps strangers out of its log.
func (t *transport) labelled(b []byte) bool {
	return len(b) > 2+len(t.label) && b[0] == firstLabel && int(b[1]) == len(t.label) && string(b[2:2+len(t.label)]) == t.label
}

// accept takes connections until the transport closes.
func (t *transport) accept() {
	for {
		c, err := t.tcp.AcceptTCP()
		if err != nil {
			if t.closed() {
				return
			}
			t.log.Warn().Err(err).Msg("gossip connection not accepted")
			if !t.pause(50 * time.Millisecond) { // out of file descriptors, as a rule
				return
			}
			continue
		}
		x := t.handshakes.admit(c)
		t.wg.Go(func() { t.sort(x) })
	}
}

// sort reads the first byte of a connection and hands it on.
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

// hand gives an incoming stream to memberlist.
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
		return time.Now(), nil // as a network that loses it
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

// dial opens a TCP connection. It ends with ctx, or with the transport.
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

// Shutdown implements memberlist.Transport: it stops to receive, closes every
// stream that is not a knowledge stream, and returns when this transport's
// goroutines are gone. Idempotent.
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
	// A connection may have been accepted just before.
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

// pause waits; it reports false if the transport closed meanwhile.
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
	gated *gated // nil if we have opened it
	until time.Time
	read  int // bytes; under t.mu
}

var errTooMuch = errors.New("more bytes than a fleet's state takes")

// newStream takes a connection in. It closes it and returns nil if the
// transport is closed.
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

// charge notes that n bytes were read from a stream, and reports whether it may
// go on. When all of them together hold too much, the one that holds most is
// closed: strangers cannot keep members from exchanging a state that is smaller
// than what they send themselves.
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
		_ = worst.Conn.Close() // wakes memberlist's goroutine
	}
	_, ok := t.open[s]
	return ok
}

// releaseLocked forgets a stream and what was read from it. Idempotent.
func (t *transport) releaseLocked(s *stream) {
	delete(t.open, s)
	t.buffered -= s.read
	s.read = 0
}

// held is how many bytes memberlist's open streams may hold.
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

// SetDeadline moves the deadline, but never beyond the stream's own.
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

// CloseWrite half-closes a TCP connection.
func (p *peeked) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

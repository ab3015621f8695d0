package member

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func connect(t *testing.T, n *testNode) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Self().Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ends(t *testing.T, c net.Conn, what string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: still open", what)
	}
}

// A flood of half-open handshakes does not keep honest nodes out, and ends by its deadline.
func TestFloodOfHalfOpenHandshakes(t *testing.T) {
	t.Parallel()
	nodes := fleet(t, 2, func(i int, cfg *Config) {
		patient(i, cfg)
		cfg.handshake = 5 * time.Second
	})
	var flood []net.Conn
	for i := range maxHandshakes + maxHandshakes/2 {
		c := connect(t, nodes[0])
		if i%2 == 0 {
			if _, err := c.Write([]byte{firstTLS, 3, 1, 2, 0, 1}); err != nil {
				t.Fatal(err)
			}
		}
		flood = append(flood, c)
	}
	eventually(t, "the bound is reached and held", func() bool {
		s := nodes[0].Stats()
		return s.Evicted > 0 && s.Handshaking <= maxHandshakes
	}, func() any { return nodes[0].Stats() })
	eventually(t, "an honest node gets through", func() bool {
		c, err := nodes[1].Dial(context.Background(), nodes[0].Self())
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		return say(c, "through the flood") == nil
	}, func() any { return nodes[0].Stats() })
	for _, c := range flood {
		ends(t, c, "half a handshake")
	}
	eventually(t, "nothing is left", func() bool { return nodes[0].Stats().Handshaking == 0 }, func() any { return nodes[0].Stats() })
	if nodes[1].state("node-0") != StateAlive || nodes[1].seen(Failed, "node-0") != 0 {
		t.Error("the flood made the node look dead")
	}
}

// A handshake of one byte at a time ends by its deadline.
func TestSlowLoris(t *testing.T) {
	t.Parallel()
	cfg := testConfig("a")
	cfg.handshake = 2 * time.Second
	n := start(t, cfg)
	slow, memb := connect(t, n), connect(t, n)
	done := make(chan struct{})
	defer func() { <-done }()
	closed := make(chan struct{})
	go func() {
		defer close(done)
		hello := append([]byte{firstTLS, 3, 1, 2, 0, 1, 0, 1, 0xfc}, make([]byte, 400)...)
		state := append([]byte{firstLabel, byte(len("grapevine/test"))}, "grapevine/test"...)
		state = append(state, 10, 0, 16, 0, 0)
		state = append(state, make([]byte, 400)...)
		for i := range hello {
			_, err1 := slow.Write(hello[i : i+1])
			_, err2 := memb.Write(state[i : i+1])
			if err1 != nil && err2 != nil {
				return
			}
			select {
			case <-closed:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	begin := time.Now()
	ends(t, slow, "slow handshake")
	ends(t, memb, "slow state")
	t.Logf("closed after %v", time.Since(begin).Round(100*time.Millisecond))
	close(closed)
}

// Garbage from strangers does not stop a node.
func TestGarbage(t *testing.T) {
	nodes := fleet(t, 2, patient)
	udp, err := net.Dial("udp", nodes[0].Self().Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udp.Close() }()
	label := append([]byte{firstLabel, byte(len("grapevine/test"))}, "grapevine/test"...)
	noise := make([]byte, 8000)
	for i := range 300 {
		_, _ = rand.Read(noise)
		n := 1 + int(binary.BigEndian.Uint16(noise))%1400
		packet := noise[:n]
		switch i % 4 {
		case 0:
			packet = append(append([]byte{}, label...), packet...)
		case 1:
			packet = noise
		case 2:
			packet = label[:1+i%len(label)]
		}
		_, _ = udp.Write(packet)
		if i%10 == 0 {
			c := connect(t, nodes[0])
			switch i % 40 {
			case 0:
				noise[0] = firstTLS
			case 10:
				copy(noise, label)
			case 20:
				// Announces a state of 20 MB and sends 5 MB.
				copy(noise, append(append([]byte{}, label...), 10, 1, 64, 0, 0))
				_ = c.SetWriteDeadline(time.Now().Add(patience))
				for range 5 << 20 / len(noise) {
					if _, err := c.Write(noise); err != nil {
						break
					}
				}
			}
			_, _ = c.Write(noise)
			if half, ok := c.(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
			ends(t, c, "garbage")
		}
	}
	eventually(t, "strays are counted", func() bool { return nodes[0].Stats().StrayPackets > 0 }, func() any { return nodes[0].Stats() })
	if err := say(dialed(t, nodes[1], nodes[0]), "still here"); err != nil {
		t.Error(err)
	}
	if nodes[1].seen(Failed, "node-0") != 0 {
		t.Error("garbage made the node look dead")
	}
	eventually(t, "memory is given back", func() bool { return nodes[0].transport.held() == 0 }, func() any { return nodes[0].transport.held() })
}

// A node with the key misbehaves after the handshake.
func TestHostilePeer(t *testing.T) {
	n := start(t, testConfig("a"))
	r, err := newRing("evil", [][]byte{key(1)}, "")
	if err != nil {
		t.Fatal(err)
	}
	evil := fullCard()
	evil.Name, evil.Cluster, evil.KeyID, evil.BlockBytes, evil.keys, evil.leaving = "evil", "test", 0x1f2e0000, 512, r.identity.Load().prints, false
	welcome, err := appendHello(nil, &evil)
	if err != nil {
		t.Fatal(err)
	}
	other := evil
	other.Name = "good"
	impostor, err := appendHello(nil, &other)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, alpn string
		say        []byte
	}{
		{"no hello", alpnKnowledge, []byte("GET / HTTP/1.1\r\n\r\n")},
		{"endless hello", alpnKnowledge, []byte(helloMagic + "\xff\xff")},
		{"empty hello", alpnKnowledge, []byte(helloMagic + "\x00\x00")},
		{"another's name", alpnKnowledge, impostor},
		{"no key request", alpnKeys, append(append([]byte{}, welcome...), 9, 9, 9)},
		{"no such operation", alpnKeys, append(append([]byte{}, welcome...), keysVersion, 77, 0)},
		{"a key without end", alpnKeys, append(append([]byte{}, welcome...), keysVersion, byte(KeyInstall), 255)},
		{"a key of no length", alpnKeys, append(append([]byte{}, welcome...), keysVersion, byte(KeyInstall), 3, 1, 2, 3)},
		{"removal of the primary", alpnKeys, appendKeyRequest(append([]byte{}, welcome...), KeyRemove, key(1))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := (&secure{ring: r}).client(context.Background(), connect(t, n), n.Self().Addr, tc.alpn)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(tc.say); err != nil {
				t.Fatal(err)
			}
			ends(t, c, tc.name)
		})
	}
	if len(n.Keys()) != 1 {
		t.Error(n.Keys())
	}
	for _, c := range []*tls.Config{
		{InsecureSkipVerify: true, Certificates: []tls.Certificate{r.identity.Load().leaf}},
		{InsecureSkipVerify: true, Certificates: []tls.Certificate{r.identity.Load().leaf}, NextProtos: []string{"h2"}},
		{InsecureSkipVerify: true, NextProtos: []string{alpnKnowledge}},
		{InsecureSkipVerify: true, NextProtos: []string{alpnKnowledge}, MaxVersion: tls.VersionTLS12},
	} {
		conn := tls.Client(connect(t, n), c)
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write(welcome); err == nil {
			ends(t, conn, "no stream")
		}
	}
	eventually(t, "no stream is left", func() bool { return n.Stats().Streams == 0 }, func() any { return n.Stats() })
}

// A peer that opens many streams loses its oldest.
func TestStreamsPerPeerAreBounded(t *testing.T) {
	nodes := fleet(t, 2, patient)
	first := dialed(t, nodes[0], nodes[1])
	var last *Conn
	for range maxConnsPerPeer {
		last = dialed(t, nodes[0], nodes[1])
		if err := say(last, "served"); err != nil {
			t.Fatal(err)
		}
	}
	ends(t, first, "the oldest stream")
	if err := say(last, "the newest"); err != nil {
		t.Error(err)
	}
}

func TestGate(t *testing.T) {
	g := gate{limit: 3}
	pipe := func() net.Conn {
		a, b := net.Pipe()
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return a
	}
	first, second := g.admit(pipe()), g.admit(pipe())
	g.admit(pipe())
	second.leave()
	second.leave()
	g.admit(pipe())
	if open, out := g.counts(); open != 3 || out != 0 {
		t.Error(open, out)
	}
	g.admit(pipe())
	if open, out := g.counts(); open != 3 || out != 1 {
		t.Error(open, out)
	}
	if _, err := first.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("the oldest is still open:", err)
	}
	g.closeAll()
	late := pipe()
	g.admit(late)
	if _, err := late.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("a closed gate lets in:", err)
	}
}

func TestLogBridge(t *testing.T) {
	var out lines
	b := &logBridge{log: zerolog.New(&out).Level(zerolog.InfoLevel), limit: newLimiter(2, 1)}
	now := time.Now()
	b.limit.now = func() time.Time { return now }
	write := func(s string) {
		t.Helper()
		if n, err := b.Write([]byte(s)); n != len(s) || err != nil {
			t.Error(n, err)
		}
	}
	write("[DEBUG] memberlist: quiet\n")
	write("[WARN] memberlist: bad\x1b[0m\n")
	write("[ERR] memberlist: worse\n")
	write("[ERR] memberlist: too many\n")
	now = now.Add(time.Second)
	write("no level\n")
	want := lines{
		`{"level":"warn","text":"bad?[0m","message":"memberlist"}` + "\n",
		`{"level":"warn","text":"worse","message":"memberlist"}` + "\n",
		`{"level":"info","skipped":1,"text":"no level","message":"memberlist"}` + "\n",
	}
	if len(out) != len(want) {
		t.Fatal(out)
	}
	for i := range want {
		if out[i] != want[i] {
			t.Errorf("%s, want %s", out[i], want[i])
		}
	}
}

type lines []string

func (l *lines) Write(b []byte) (int, error) { *l = append(*l, string(b)); return len(b), nil }

// guest opens a stream as who without being a member.
func guest(t *testing.T, n *testNode, s *secure, alpn string, who Info) (*tls.Conn, verdict, string) {
	t.Helper()
	c, _, err := s.client(context.Background(), connect(t, n), n.Self().Addr, alpn)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	hello, err := appendHello(nil, &card{Info: who, keys: s.ring.identity.Load().prints})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := readHello(c); err != nil {
		t.Fatal(err)
	}
	v, text, err := readVerdict(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, v, text
}

func stranger(n *testNode, name, addr string) Info {
	who := n.Self()
	who.Name, who.Addr = name, addr
	return who
}

// A refused stranger counts until its connection closes.
func TestRefusedStrangersAreBounded(t *testing.T) {
	n := start(t, testConfig("a"))
	eventually(t, "a refused stranger that stays is counted", func() bool {
		c := connect(t, n)
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte{firstTLS, 0xff, 0xff, 0, 1, 0}); err != nil {
			return false
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, c)
		return n.Stats().Handshaking > 0
	}, func() any { return n.Stats() })
}

// Strangers that fill memberlist's streams do not block members: the fullest streams make room.
func TestStreamsFullOfGarbage(t *testing.T) {
	tr := &transport{open: make(map[*stream]struct{}), closing: make(chan struct{})}
	open := func() *stream {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		return tr.newStream(near, nil)
	}
	var strangers []*stream
	for range maxBufferedBytes / maxStreamBytes {
		s := open()
		if !tr.charge(s, maxStreamBytes) {
			t.Fatal("ended below its bound")
		}
		strangers = append(strangers, s)
	}
	honest := open()
	if !tr.charge(honest, 1000) || tr.held() != maxBufferedBytes-maxStreamBytes+1000 {
		t.Errorf("a member's stream was ended, or %d bytes are held", tr.held())
	}
	ended := 0
	for _, s := range strangers {
		if !tr.charge(s, 0) {
			ended++
			if _, err := s.Conn.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
				t.Error("ended, but not closed:", err)
			}
		}
	}
	if ended != 1 {
		t.Errorf("%d streams were ended", ended)
	}
	if tr.charge(honest, maxStreamBytes) {
		t.Error("a stream goes on beyond its own bound")
	}
	for _, s := range append(strangers, honest) {
		_ = s.Close()
	}
	if tr.held() != 0 || len(tr.open) != 0 {
		t.Errorf("%d bytes are held by %d streams", tr.held(), len(tr.open))
	}
}

type countingConn struct {
	net.Conn
	read atomic.Int64
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// A stranger cannot send certificates of unlimited length.
func TestLongHandshakeIsCut(t *testing.T) {
	cfg := testConfig("a")
	cfg.handshake = patience
	n := start(t, cfg)
	r, err := newRing("evil", [][]byte{key(2)}, "")
	if err != nil {
		t.Fatal(err)
	}
	leaf := r.identity.Load().leaf
	for range 180 { // 1 KB each: in all, less than crypto/tls takes
		leaf.Certificate = append(leaf.Certificate, make([]byte, 1000))
	}
	near, far := net.Pipe()
	var client sync.WaitGroup
	defer client.Wait()
	defer func() { _, _ = near.Close(), far.Close() }()
	client.Go(func() {
		c := tls.Client(far, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{leaf}, NextProtos: []string{alpnKnowledge}})
		_ = c.Handshake()
		_, _ = io.Copy(io.Discard, c)
	})
	in := &countingConn{Conn: near}
	g := gate{limit: 1}
	x := g.admit(in)
	if _, err := n.welcome(x, "far"); !errors.Is(err, errLongHandshake) {
		t.Error(err)
	}
	if n := in.read.Load(); n > maxHandshakeBytes {
		t.Errorf("%d bytes were read", n)
	}
}

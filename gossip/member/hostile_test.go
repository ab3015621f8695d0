package member

import (
	"bytes"
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
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/bubble"
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

func connectVirtual(t *testing.T, network *memNet, from int) net.Conn {
	t.Helper()
	c, err := memHost{network, virtualAddr(from)}.dial(context.Background(), virtualAddr(1).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open)
}

func TestFloodOfHalfOpenHandshakes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		nodes, network := virtualFleet(t, 2)
		handshakes := &nodes[0].transport.handshakes
		var flood []net.Conn
		for i := range maxHandshakes + maxHandshakes/2 {
			c := connectVirtual(t, network, 66)
			if i%2 == 0 {
				if _, err := c.Write([]byte{firstTLS, 3, 1, 2, 0, 1}); err != nil {
					t.Fatal(err)
				}
			}
			flood = append(flood, c)
		}
		synctest.Wait()
		if n := handshakes.count(); n != maxHandshakes {
			t.Errorf("%d connections are in handshakes", n)
		}
		if err := say(dialed(t, nodes[1], nodes[0]), "through the flood"); err != nil {
			t.Error(err)
		}
		begin := time.Now()
		for _, c := range flood {
			ends(t, c, "half a handshake")
		}
		if d := time.Since(begin); d > handshakeTimeout+lingerTime {
			t.Errorf("the flood lasted %v", d)
		}
		synctest.Wait()
		if n := handshakes.count(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
		if nodes[1].state("node-0") != StateAlive || nodes[1].seen(Failed, "node-0") != 0 {
			t.Error("the flood made the node look dead")
		}
	})
}

func TestSlowLoris(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, network := virtualFleet(t, 1)
		hello := append([]byte{firstTLS, 3, 1, 2, 0, 1, 0, 1, 0xfc}, make([]byte, 400)...)
		state := append([]byte{firstLabel, byte(len("grapevine/test"))}, "grapevine/test"...)
		state = append(append(state, 10, 0, 16, 0, 0), make([]byte, 400)...)
		for _, tc := range []struct {
			what  string
			bytes []byte
			limit time.Duration
		}{{"slow handshake", hello, handshakeTimeout}, {"slow state", state, streamTimeout}} {
			c := connectVirtual(t, network, 66)
			begin := time.Now()
			for i := range tc.bytes {
				if _, err := c.Write(tc.bytes[i : i+1]); err != nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if d := time.Since(begin); d > tc.limit+2*time.Second {
				t.Errorf("%s: closed after %v", tc.what, d)
			}
		}
	})
}

func held(t *transport) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buffered
}

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
	if err := say(dialed(t, nodes[1], nodes[0]), "still here"); err != nil {
		t.Error(err)
	}
	if nodes[1].seen(Failed, "node-0") != 0 {
		t.Error("garbage made the node look dead")
	}
	eventually(t, "memory is given back", func() bool { return held(nodes[0].transport) == 0 }, func() any { return held(nodes[0].transport) })
}

func TestHostilePeer(t *testing.T) {
	n := start(t, testConfig("a"))
	r, err := newRing("evil", [][]byte{key(1)}, "")
	if err != nil {
		t.Fatal(err)
	}
	evil := fullMeta()
	evil.Name, evil.Cluster, evil.KeyID, evil.BlockBytes, evil.Keys, evil.Leaving = "evil", "test", 0x1f2e0000, 512, r.identity.Load().prints, false
	welcome := message(t, &evil)
	other := evil
	other.Name = "good"
	impostor := message(t, &other)
	for _, tc := range []struct {
		name, alpn string
		say        []byte
	}{
		{"no hello", alpnKnowledge, []byte("GET / HTTP/1.1\r\n\r\n")},
		{"endless hello", alpnKnowledge, []byte("\xff\xff{")},
		{"empty hello", alpnKnowledge, []byte("\x00\x00")},
		{"another's name", alpnKnowledge, impostor},
		{"no key request", alpnKeys, append(bytes.Clone(welcome), 0, 3, '{', '{', '{')},
		{"no such operation", alpnKeys, append(bytes.Clone(welcome), message(t, keyRequest{"burn", nil})...)},
		{"a key without end", alpnKeys, append(bytes.Clone(welcome), 255, 255)},
		{"a key of no length", alpnKeys, append(bytes.Clone(welcome), message(t, keyRequest{KeyInstall, []byte{1, 2, 3}})...)},
		{"removal of the primary", alpnKeys, append(bytes.Clone(welcome), message(t, keyRequest{KeyRemove, key(1)})...)},
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
	eventually(t, "no stream is left", func() bool { return openStreams(n) == 0 }, func() any { return openStreams(n) })
}

func openStreams(n *testNode) int {
	n.conns.mu.Lock()
	defer n.conns.mu.Unlock()
	return len(n.conns.open)
}

func TestStreamsPerPeerAreBounded(t *testing.T) {
	nodes := fleet(t, 2, patient)
	first := dialed(t, nodes[0], nodes[1])
	if err := say(first, "served"); err != nil { // the hello is answered before the stream counts
		t.Fatal(err)
	}
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
	admit := func() *inbound {
		a, b := net.Pipe()
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		x := newInbound(a)
		g.admit(x)
		return x
	}
	first, second := admit(), admit()
	admit()
	second.leave()
	second.leave()
	if admit(); g.count() != 3 {
		t.Error(g.count())
	}
	_ = first.SetWriteDeadline(time.Now())
	if _, err := first.Write([]byte{1}); errors.Is(err, io.ErrClosedPipe) {
		t.Error("closed below the limit")
	}
	if admit(); g.count() != 3 {
		t.Error(g.count())
	}
	if _, err := first.Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("the oldest is still open:", err)
	}
	g.closeAll()
	if _, err := admit().Write([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error("a closed gate lets in:", err)
	}
}

func TestLogBridge(t *testing.T) {
	var out bytes.Buffer
	b := logBridge{limited(zerolog.New(&out).Level(zerolog.InfoLevel), 3, time.Hour)}
	for _, line := range []string{
		"[DEBUG] memberlist: quiet\n", "[WARN] memberlist: bad\x1b[0m\n", "[ERR] memberlist: worse\n", "no level\n", "too many\n",
	} {
		if n, err := b.Write([]byte(line)); n != len(line) || err != nil {
			t.Error(n, err)
		}
	}
	want := `{"level":"warn","text":"bad?[0m","message":"memberlist"}` + "\n" +
		`{"level":"warn","text":"worse","message":"memberlist"}` + "\n" +
		`{"level":"info","text":"no level","message":"memberlist"}` + "\n"
	if out.String() != want {
		t.Error(out.String())
	}
}

func guest(t *testing.T, n *testNode, s *secure, alpn string, who Info) (c *tls.Conn, v verdict) {
	t.Helper()
	c, _, err := s.client(context.Background(), connect(t, n), n.Self().Addr, alpn)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := writeMessage(c, &meta{Info: who, Keys: s.ring.identity.Load().prints}); err != nil {
		t.Fatal(err)
	}
	if _, err := readHello(c); err != nil {
		t.Fatal(err)
	}
	if err := readMessage(c, &v); err != nil {
		t.Fatal(err)
	}
	return c, v
}

func stranger(n *testNode, name, addr string) Info {
	who := n.Self()
	who.Name, who.Addr = name, addr
	return who
}

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
		return n.transport.handshakes.count() > 0
	}, func() any { return n.transport.handshakes.count() })
}

func TestStreamsFullOfGarbage(t *testing.T) {
	tr := &transport{open: make(map[*stream]struct{}), ctx: t.Context()}
	open := func() *stream {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		return tr.newStream(newInbound(near))
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
	if !tr.charge(honest, 1000) || held(tr) != maxBufferedBytes-maxStreamBytes+1000 {
		t.Errorf("a member's stream was ended, or %d bytes are held", held(tr))
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
	if held(tr) != 0 || len(tr.open) != 0 {
		t.Errorf("%d bytes are held by %d streams", held(tr), len(tr.open))
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

func TestLongHandshakeIsCut(t *testing.T) {
	n := start(t, testConfig("a"))
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
	x := newInbound(in)
	x.left = maxHandshakeBytes
	if _, err := n.welcome(x, "far"); !errors.Is(err, errLongHandshake) {
		t.Error(err)
	}
	if n := in.read.Load(); n > maxHandshakeBytes {
		t.Errorf("%d bytes were read", n)
	}
}

package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// socketPair returns both ends of a TCP connection, the first as a socket.
func socketPair(t *testing.T) (*socket, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	c, err := ln.Accept()
	must(t, err)
	t.Cleanup(func() { peer.Close(); c.Close() })
	return newSocket(c).(*socket), peer.(*net.TCPConn)
}

// A socket is built here, since race builds do not use it elsewhere.
func TestSocketCarriesEveryByte(t *testing.T) {
	s, peer := socketPair(t)
	data := make([]byte, 8<<20) // far more than the kernel buffers, so that both sides wait
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(data)
	echoed := make(chan error, 1)
	go func() {
		_, err := io.Copy(peer, peer)
		_ = peer.CloseWrite()
		echoed <- err
	}()
	written := make(chan error, 1)
	go func() {
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(1<<20))
			if m, err := s.Write(rest[:n]); err != nil || m != n {
				written <- errors.Join(err, io.ErrShortWrite)
				return
			}
			rest = rest[n:]
		}
		written <- s.CloseWrite()
	}()
	got, err := io.ReadAll(s)
	must(t, err)
	must(t, <-written)
	must(t, <-echoed)
	if !bytes.Equal(got, data) {
		t.Error("the bytes that came back are others")
	}
}

func TestSocketWaitsEnd(t *testing.T) {
	t.Parallel()
	s, peer := socketPair(t)
	must(t, s.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	var one [1]byte
	if _, err := s.Read(one[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	must(t, s.SetReadDeadline(time.Time{}))
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = s.SetReadDeadline(aLongTimeAgo)
	}()
	if _, err := s.Read(one[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline while waiting: %v", err)
	}
	must(t, s.SetDeadline(time.Time{}))
	much := make([]byte, 64<<20)
	must(t, s.SetWriteDeadline(time.Now().Add(2*time.Second)))
	if n, err := s.Write(much); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 {
		t.Errorf("write to a full connection: %d, %v", n, err)
	}
	must(t, s.SetDeadline(time.Time{}))
	must(t, peer.SetLinger(0))
	peer.Close()
	if _, err := s.Read(one[:]); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after an RST: %v", err)
	}
	if _, err := s.Write(one[:]); err == nil {
		t.Error("written to a reset connection")
	}
	s.Close()
	if _, err := s.Read(one[:]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestSocketSeesTheEnd(t *testing.T) {
	s, peer := socketPair(t)
	_, err := peer.Write([]byte("x"))
	must(t, err)
	must(t, peer.CloseWrite())
	got, err := io.ReadAll(s)
	if err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// The watch's question and the pool's, on every state a socket can be in.
func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		do          func(peer *net.TCPConn)
		gone, quiet bool
	}{
		"open":             {func(*net.TCPConn) {}, false, true},
		"unread":           {func(p *net.TCPConn) { _, _ = p.Write([]byte("x")) }, false, false},
		"fin":              {func(p *net.TCPConn) { p.Close() }, true, false},
		"half-close":       {func(p *net.TCPConn) { _ = p.CloseWrite() }, true, false},
		"unread, then fin": {func(p *net.TCPConn) { _, _ = p.Write([]byte("x")); p.Close() }, true, false},
		"rst":              {func(p *net.TCPConn) { _ = p.SetLinger(0); p.Close() }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, peer := socketPair(t)
			p := newProbe(s.TCPConn)
			tc.do(peer)
			eventually(t, name, func() bool { return p.gone() == tc.gone && p.quiet() == tc.quiet })
			for range 3 { // and it stays so: asking changes nothing
				if p.gone() != tc.gone || p.quiet() != tc.quiet {
					t.Errorf("gone %v, quiet %v", p.gone(), p.quiet())
				}
			}
			if s.Close(); p.gone() || p.quiet() {
				t.Error("a socket closed on this side was asked")
			}
		})
	}
}

// TestSocketAsks holds ask to its order: written, told so, and back when there is an answer, however large the question.
func TestSocketAsks(t *testing.T) {
	for _, size := range []int{1, 4 << 10, 16 << 20} {
		s, peer := socketPair(t)
		go func() {
			if _, err := io.CopyN(io.Discard, peer, int64(size)); err == nil {
				_, _ = peer.Write([]byte("answer"))
			}
		}()
		sent := 0
		must(t, s.ask(make([]byte, size), func() { sent++ }))
		got := make([]byte, 16)
		n, err := s.Read(got)
		must(t, err)
		if sent != 1 || string(got[:n]) != "answer" {
			t.Errorf("%d bytes: told %d times, answer %q", size, sent, got[:n])
		}
	}
}

// TestSocketAskFails tells failures of the writing, which ask returns, from those of the waiting, which the next Read does.
func TestSocketAskFails(t *testing.T) {
	s, peer := socketPair(t)
	sent := 0
	note := func() {
		sent++
		must(t, s.SetDeadline(time.Unix(1, 0))) // the wait is interrupted
	}
	must(t, s.ask([]byte("question"), note))
	if _, err := s.Read(make([]byte, 1)); sent != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("told %d times, read %v", sent, err)
	}
	if err := s.ask([]byte("question"), note); sent != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("interrupted before it was written: told %d times, %v", sent, err)
	}
	must(t, s.SetDeadline(time.Time{}))
	must(t, peer.SetLinger(0))
	must(t, peer.Close())
	var err error
	for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); {
		err = s.ask([]byte("question"), func() {})
	}
	if err == nil {
		t.Error("asking a peer that has gone never failed")
	}
	must(t, s.Close())
	if err := s.ask([]byte("question"), func() {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("asking on a closed socket: %v", err)
	}
}

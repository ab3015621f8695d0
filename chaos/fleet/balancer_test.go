package fleet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

type backend struct {
	*httptest.Server
	ready atomic.Bool
	hold  chan struct{}
}

func newBackend(t *testing.T, name string) *backend {
	b := &backend{hold: make(chan struct{})}
	b.ready.Store(true)
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !b.ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	mux.HandleFunc("/held", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		w.(http.Flusher).Flush()
		select {
		case <-b.hold:
		case <-r.Context().Done():
		}
	})
	b.Server = httptest.NewServer(mux)
	t.Cleanup(b.Close)
	return b
}

func (b *backend) addr() string { return b.Listener.Addr().String() }

func newBalancer(t *testing.T, seed uint64, backends ...*backend) *fleet.Balancer {
	t.Helper()
	var targets []fleet.Target
	for i, b := range backends {
		targets = append(targets, fleet.Target{Name: fmt.Sprintf("b%d", i), Addr: b.addr()})
	}
	bal, err := fleet.NewBalancer("127.0.0.1:0", targets, fleet.BalancerConfig{Seed: seed, Interval: 10 * time.Millisecond, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bal.Close(); err != nil {
			t.Error(err)
		}
	})
	return bal
}

func get(t *testing.T, bal *fleet.Balancer) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + bal.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBalancerSpreads(t *testing.T) {
	backends := []*backend{newBackend(t, "b0"), newBackend(t, "b1"), newBackend(t, "b2")}
	draw := func(seed uint64) (seen []string) {
		bal := newBalancer(t, seed, backends...)
		for range 60 {
			seen = append(seen, get(t, bal))
		}
		return seen
	}
	first, again, other := draw(1), draw(1), draw(2)
	count := map[string]int{}
	for _, name := range first {
		count[name]++
	}
	if len(count) != 3 || count["b0"] < 8 || count["b1"] < 8 || count["b2"] < 8 {
		t.Errorf("60 connections went to %v", count)
	}
	if fmt.Sprint(first) != fmt.Sprint(again) || fmt.Sprint(first) == fmt.Sprint(other) {
		t.Errorf("seed 1 twice and seed 2:\n%v\n%v\n%v", first, again, other)
	}
}

func TestBalancerFollowsHealth(t *testing.T) {
	b0, b1 := newBackend(t, "b0"), newBackend(t, "b1")
	bal := newBalancer(t, 1, b0, b1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b0.ready.Store(false)
	if err := bal.WaitHealthy(ctx, "b0", false); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got := get(t, bal); got != "b1" {
			t.Fatalf("an unready target got a connection: %s", got)
		}
	}
	b1.ready.Store(false)
	if err := bal.WaitHealthy(ctx, "b1", false); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 40 {
		seen[get(t, bal)] = true
	}
	if !seen["b0"] || !seen["b1"] {
		t.Errorf("with no healthy target only %v were tried", seen)
	}
	b0.ready.Store(true)
	if err := bal.WaitHealthy(ctx, "b0", true); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got := get(t, bal); got != "b0" {
			t.Fatalf("the only healthy target is b0, a connection went to %s", got)
		}
	}
}

func TestBalancerRefused(t *testing.T) {
	b := newBackend(t, "b0")
	bal := newBalancer(t, 1, b)
	b.Close()
	c, err := net.Dial("tcp", bal.Addr())
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reading from a refused connection: %v", err)
	}
}

func rawBalancer(t *testing.T) (bal *fleet.Balancer, pair func() (client, server net.Conn)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	bal, err = fleet.NewBalancer("127.0.0.1:0", []fleet.Target{{Name: "raw", Addr: ln.Addr().String()}}, fleet.BalancerConfig{Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bal.Close() })
	return bal, func() (client, server net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", bal.Addr())
		if err != nil {
			t.Fatal(err)
		}
		server = <-accepted
		for _, c := range []net.Conn{client, server} {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
		}
		if _, err := io.WriteString(client, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
}

func TestBalancerPassesOnEnds(t *testing.T) {
	bal, pair := rawBalancer(t)
	client, server := pair()
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(server); err != nil || len(text) != 0 {
		t.Errorf("server after the client's end: %q, %v", text, err)
	}
	if _, err := io.WriteString(server, "answer\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(client).ReadString('\n'); err != nil || line != "answer\n" {
		t.Errorf("client after its own end: %q, %v", line, err)
	}
	_ = server.Close()
	_ = client.Close()

	client, server = pair()
	_ = server.(*net.TCPConn).SetLinger(0)
	_ = server.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client of a broken connection: %v", err)
	}
	_ = client.Close()

	client, server = pair()
	defer server.Close()
	defer client.Close()
	if err := bal.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("client after Close: %v", err)
	}
}

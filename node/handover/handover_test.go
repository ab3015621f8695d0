package handover

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func pair(t *testing.T) (*Successor, *Predecessor) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return &Successor{conn: newConn(near), PID: 7, process: -1}, &Predecessor{conn: newConn(far), exited: make(chan struct{})}
}

func TestMessages(t *testing.T) {
	s, p := pair(t)
	ctx := t.Context()
	var got []string
	ended, used := make(chan error, 1), make(chan string, 2)
	go func() {
		err := p.Built(ctx, "2.0", func(page *Page) { got = append(got, string(page.Data)) })
		if err == nil {
			err = p.Serving(ctx, func(page *Page) {
				if page == nil {
					close(used)
				} else {
					used <- string(page.Data)
				}
			})
		}
		ended <- err
	}()
	if version, err := s.Built(ctx); version != "2.0" || err != nil {
		t.Fatal(version, err)
	}
	for _, data := range []string{"one", "two"} {
		if err := s.Give(ctx, &Page{Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	release := func(ctx context.Context) error { return s.Released(ctx, &Page{Usage: true, Data: []byte("three")}) }
	for _, step := range []func(context.Context) error{s.EndOfPages, release, s.Yours} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil || !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("%v, %v", got, err)
	}
	if err := s.Give(ctx, &Page{Usage: true, Data: []byte("four")}); err != nil || <-used != "four" {
		t.Error(err)
	}
	taken := make(chan string, 1)
	taking, stop := context.WithCancel(ctx)
	defer stop()
	go s.Take(taking, func(page *Page) { taken <- string(page.Data) })
	if err := p.Give(ctx, &Page{Usage: true, Data: []byte("five")}); err != nil || <-taken != "five" {
		t.Error(err)
	}
	stop() // which ends no send
	if err := s.Give(ctx, &Page{Usage: true, Data: []byte("six")}); err != nil || <-used != "six" {
		t.Error(err)
	}
	gone := make(chan struct{})
	go func() {
		p.AwaitEnd(ctx)
		close(gone)
	}()
	select {
	case <-gone:
		t.Error("the predecessor seems to have ended")
	default:
	}
	s.Close()
	<-gone
	if page, more := <-used; more {
		t.Error(page)
	}
}

func TestReasonsArrive(t *testing.T) {
	s, p := pair(t)
	reason := errors.New("config.yaml:3: strategyy: unknown key")
	if err := p.Fail(reason); !errors.Is(err, reason) {
		t.Error(err)
	}
	if _, err := s.Built(t.Context()); err == nil || err.Error() != "process 7: "+reason.Error() {
		t.Error(err)
	}
	if _, err := s.Built(t.Context()); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
}

func TestNoMessageIsAwaitedForEver(t *testing.T) {
	s, p := pair(t)
	late := errors.New("late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, late)
	defer cancel()
	if _, err := s.Built(ctx); !errors.Is(err, late) {
		t.Error(err)
	}
	go func() { _ = s.send(t.Context(), message{Step: yours}) }()
	if err := p.Built(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), `"yours", want ["page" "pages_end"]`) {
		t.Error(err)
	}
}

func TestNoPredecessor(t *testing.T) {
	if p, err := FromEnvironment(); p != nil || err != nil {
		t.Error(p, err)
	}
	for _, text := range []string{"", "2", "x", "99999"} {
		t.Setenv(variable, text)
		if p, err := FromEnvironment(); p != nil || err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%q: %v, %v", text, p, err)
		}
		if _, ok := os.LookupEnv(variable); ok {
			t.Error("the variable is left for other processes")
		}
	}
}

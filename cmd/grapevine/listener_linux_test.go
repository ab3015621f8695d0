package main

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRestartOfARouterThatIsAlone: the second process answers a client that connects between two.
func TestRestartOfARouterThatIsAlone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the service manager's
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	socket, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	url, entered, let := slowEngine(t)
	start := func() *process {
		p := newProcess(t, nil, "--backend", url, "--drain-grace", "0s")
		p.cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"`, p.cmd.Path}, p.cmd.Args[1:]...)
		p.cmd.Path, p.cmd.ExtraFiles = "/bin/sh", []*os.File{socket}
		p.start(t)
		if p.data != ln.Addr().String() {
			t.Fatalf("it listens on %s", p.data)
		}
		return p
	}
	first := start()
	running := make(chan error, 1)
	go func() {
		resp, err := http.Post("http://"+first.data+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
		if err == nil {
			resp.Body.Close()
		}
		running <- err
	}()
	<-entered
	first.signal(t, syscall.SIGTERM)
	eventually(t, "draining", func() bool { return strings.Contains(first.log.String(), `"message":"draining"`) })
	var waiting net.Conn
	eventually(t, "a connection that waits", func() bool { // earlier connections may reach the first process
		c, err := net.Dial("tcp", first.data)
		if err != nil {
			t.Fatalf("refused during the drain: %v", err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			c.Close()
			return false
		}
		waiting = c
		return true
	})
	defer waiting.Close()
	let()
	if err := <-running; err != nil {
		t.Errorf("the request that ran: %v", err)
	}
	if code := first.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, first.log.String())
	}
	second := start()
	if status, err := talk(waiting, bufio.NewReader(waiting)); err != nil || status != 200 {
		t.Errorf("the client that waited: %d, %v", status, err)
	}
	second.signal(t, syscall.SIGTERM)
	if code := second.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, second.log.String())
	}
}

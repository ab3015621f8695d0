package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// holds reports whether a process has a socket open.
func holds(t *testing.T, pid int, socket *os.File) bool {
	t.Helper()
	info, err := socket.Stat()
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("socket:[%d]", info.Sys().(*syscall.Stat_t).Ino)
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		to, _ := os.Readlink(filepath.Join(dir, f.Name())) // closed meanwhile
		return to == want
	})
}

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
	eventually(t, "the first process listens no more", func() bool { return !holds(t, first.cmd.Process.Pid, socket) })
	waiting, err := net.Dial("tcp", first.data) // only the second process accepts it
	if err != nil {
		t.Fatalf("refused during the drain: %v", err)
	}
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

package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

type serviceManager struct {
	conn *net.UnixConn
	env  []string // for the process
}

func newServiceManager(t *testing.T, watchdog string) *serviceManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &serviceManager{conn, []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=" + watchdog}}
}

func (m *serviceManager) next(t *testing.T, d time.Duration) string {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func (m *serviceManager) await(t *testing.T, want string) string {
	t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if got := m.next(t, time.Second); strings.Contains(got, want) {
			return got
		} else if got != "" {
			last = got
		}
	}
	t.Fatalf("no message with %q, the last was %q", want, last)
	return ""
}

func TestServiceManager(t *testing.T) {
	m := newServiceManager(t, "1500000")
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("backends: [{url: 'http://127.0.0.1:1', models: [m]}]\n")
	p := serveWith(t, m.env, "--config", file, "--drain-grace", "1ms")

	if got := m.next(t, time.Minute); got != "STATUS=starting\nEXTEND_TIMEOUT_USEC=30000000" {
		t.Errorf("first: %q", got)
	}
	if got := m.next(t, time.Minute); strings.Replace(got, " (1 avoided)", "", 1) != "READY=1\nSTATUS=ready, 1 engine, 0 requests in flight" { // nothing listens at the engine's port
		t.Errorf("second: %q", got)
	}
	for range 2 {
		m.await(t, "WATCHDOG=1\nSTATUS=ready, 1 engine")
	}

	p.signal(t, syscall.SIGSTOP)
	eventually(t, "silence", func() bool { return m.next(t, 1500*time.Millisecond) == "" })
	p.signal(t, syscall.SIGCONT)
	m.await(t, "WATCHDOG=1")

	write("backends: [{url: 'http://127.0.0.1:1', models: [m], api_key: k}]\nlog_level: warn\nhorizon: 5m\ndrain_timeout: 7m\n")
	p.signal(t, syscall.SIGHUP)
	m.await(t, "RELOADING=1")
	m.await(t, "READY=1")
	eventually(t, "what is in force and what waits is named", func() bool {
		return strings.Contains(p.log.String(), `"applied":["drain_timeout","log_level","backends"],"at_next_start":["horizon"]`)
	})
	write("strategyy: session\n")
	p.signal(t, syscall.SIGHUP)
	m.await(t, "RELOADING=1")
	m.await(t, "READY=1")
	eventually(t, "the mistake is reported", func() bool {
		return strings.Contains(p.log.String(), "strategyy: unknown key") && strings.Contains(p.log.String(), "not reloaded")
	})
	for _, event := range []string{"started", "ready", "engine_probes_fail", "config_reloaded", "config_refused"} {
		if !strings.Contains(p.log.String(), `"event":"`+event+`"`) {
			t.Errorf("no line of %s", event)
		}
	}
	m.await(t, "WATCHDOG=1")

	p.signal(t, syscall.SIGTERM)
	if got := m.await(t, "STOPPING=1"); got != "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=435001000" {
		t.Errorf("at the end: %q", got)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log.String())
	}
	if got := m.next(t, time.Millisecond); got != "" {
		t.Errorf("after the end: %q", got)
	}
}

func TestFirstOfItsFleet(t *testing.T) {
	m := newServiceManager(t, "")
	p := serveWith(t, m.env, "--gossip", "127.0.0.1:0", "--join", "127.0.0.1:1", "--secret", fleetSecret, "--warm-deadline", "200ms", "--drain-grace", "0s")
	if got := m.await(t, "READY=1"); !strings.Contains(got, "1 node") {
		t.Errorf("%q", got)
	}
	p.signal(t, syscall.SIGTERM)
	m.await(t, "STOPPING=1")
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log.String())
	}
}

func TestServiceManagerMistake(t *testing.T) {
	cmd := command(t, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(t.TempDir(), "nobody"))
	if got := finish(t, cmd, ""); got.code != exitFailed || !strings.Contains(got.err, "NOTIFY_SOCKET") {
		t.Errorf("%+v", got)
	}
}

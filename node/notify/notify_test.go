package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

type manager struct {
	conn *net.UnixConn
	path string
}

func listen(t *testing.T, path string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{conn, path}
}

func (m *manager) next(t *testing.T, d time.Duration) string {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return ""
	}
	return string(buf[:n])
}

func (m *manager) await(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if strings.Contains(m.next(t, time.Second), want) {
			return
		}
	}
	t.Fatalf("no message with %q came", want)
}

func open(t *testing.T, env map[string]string) *Manager {
	t.Helper()
	m, err := FromEnvironment(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func TestMessages(t *testing.T) {
	for name, path := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "notify"),
		"abstract": fmt.Sprintf("@grapevine-notify-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	} {
		t.Run(name, func(t *testing.T) {
			to := listen(t, path)
			m := open(t, map[string]string{"NOTIFY_SOCKET": path})
			for _, tc := range []struct {
				lines []string
				want  string
			}{
				{[]string{Ready, Status("3 nodes")}, "READY=1\nSTATUS=3 nodes"},
				{[]string{Status("one\nREADY=1\r\nline")}, "STATUS=one READY=1  line"},
				{[]string{Stopping, Extend(90 * time.Second)}, "STOPPING=1\nEXTEND_TIMEOUT_USEC=90000000"},
			} {
				if err := m.Send(tc.lines...); err != nil {
					t.Fatal(err)
				}
				if got := to.next(t, 30*time.Second); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
		})
	}
}

func TestWithoutManager(t *testing.T) {
	m := open(t, nil)
	if m != nil {
		t.Fatal("a manager without NOTIFY_SOCKET")
	}
	if err := m.Send(Ready); err != nil {
		t.Error(err)
	}
	m.Watch(t.Context(), nil, nil)
	m.Close()
}

func TestEnvironment(t *testing.T) {
	to := listen(t, filepath.Join(t.TempDir(), "notify"))
	own, other := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getpid()+1)
	for _, tc := range []struct {
		name, socket, usec, pid string
		watchdog                time.Duration
		err                     string
	}{
		{"no watchdog", to.path, "", "", 0, ""},
		{"watchdog", to.path, "30000000", own, 30 * time.Second, ""},
		{"for anybody", to.path, "30000000", "", 30 * time.Second, ""},
		{"for another process", to.path, "30000000", other, 0, ""},
		{"no number", to.path, "soon", own, 0, `WATCHDOG_USEC "soon"`},
		{"nothing", to.path, "0", own, 0, `WATCHDOG_USEC "0"`},
		{"too large", to.path, "9223372036854775807", own, 0, "WATCHDOG_USEC"},
		{"not a path", "run/notify", "", "", 0, `NOTIFY_SOCKET "run/notify"`},
		{"nobody listens", to.path + "-not", "", "", 0, "NOTIFY_SOCKET: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := map[string]string{"NOTIFY_SOCKET": tc.socket, "WATCHDOG_USEC": tc.usec, "WATCHDOG_PID": tc.pid}
			m, err := FromEnvironment(func(name string) string { return env[name] })
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Watchdog() != tc.watchdog {
				t.Errorf("watchdog %v, want %v", m.Watchdog(), tc.watchdog)
			}
		})
	}
}

func TestManagerRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	first := listen(t, path)
	m := open(t, map[string]string{"NOTIFY_SOCKET": path})
	first.conn.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := m.Send(Ready); err == nil {
		t.Error("nobody listens, and no error")
	}
	second := listen(t, path)
	if err := m.Send(Ready); err != nil {
		t.Fatal(err)
	}
	if got := second.next(t, 30*time.Second); got != Ready {
		t.Errorf("got %q", got)
	}
}

type patient struct {
	working func(ctx context.Context) error
}

func (p *patient) Working(ctx context.Context) error { return p.working(ctx) }
func (p *patient) Summary() string                   { return "well" }

func watched(t *testing.T, m *Manager, p Patient) (failures chan error, stop func()) {
	t.Helper()
	failures = make(chan error, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Watch(ctx, p, func(err error) {
			select {
			case failures <- err:
			default:
			}
		})
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return failures, stop
}

func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	to := listen(t, filepath.Join(t.TempDir(), "notify"))
	m := open(t, map[string]string{"NOTIFY_SOCKET": to.path, "WATCHDOG_USEC": "60000"})
	if m.Interval() != 20*time.Millisecond {
		t.Errorf("interval %v", m.Interval())
	}
	results, end := make(chan error), make(chan struct{})
	failures, stop := watched(t, m, &patient{working: func(ctx context.Context) error {
		select {
		case err := <-results:
			return err
		case <-end:
			return nil
		}
	}})
	results <- nil
	if got := to.next(t, 30*time.Second); got != "WATCHDOG=1\nSTATUS=well" {
		t.Errorf("working: %q", got)
	}
	results <- errors.New("the loop stands still")
	if got := to.next(t, 30*time.Second); got != "STATUS=not working: the loop stands still" {
		t.Errorf("not working: %q", got)
	}
	for err := range failures {
		if !errors.Is(err, errNoAnswer) {
			if err.Error() != "the loop stands still" {
				t.Error(err)
			}
			break
		}
	}
	results <- nil
	to.await(t, "WATCHDOG=1")

	for range 5 {
		if err := <-failures; !errors.Is(err, errNoAnswer) {
			t.Fatal(err)
		}
	}
	if got := to.next(t, time.Millisecond); got != "" {
		t.Errorf("no answer, and yet a sign of life: %q", got)
	}
	results <- nil
	to.await(t, "WATCHDOG=1")
	close(end)
	stop()
}

func TestWatchEndsWhileNobodyAnswers(t *testing.T) {
	to := listen(t, filepath.Join(t.TempDir(), "notify"))
	m := open(t, map[string]string{"NOTIFY_SOCKET": to.path, "WATCHDOG_USEC": "30000"})
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	_, stop := watched(t, m, &patient{working: func(context.Context) error {
		close(entered)
		<-release
		return nil
	}})
	<-entered
	stop()
	if got := to.next(t, time.Millisecond); got != "" {
		t.Errorf("a message: %q", got)
	}
}

func TestPatience(t *testing.T) {
	to := listen(t, filepath.Join(t.TempDir(), "notify"))
	m := open(t, map[string]string{"NOTIFY_SOCKET": to.path, "WATCHDOG_USEC": "90000"})
	_, stop := watched(t, m, &patient{working: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	to.await(t, "STATUS=not working: context deadline exceeded")
	stop()
}

// Package notify speaks sd_notify(3): one datagram of NAME=VALUE lines per message, to the socket
// in NOTIFY_SOCKET.
package notify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	Ready     = "READY=1"     // started, or reloaded
	Reloading = "RELOADING=1" // until the next Ready
	Stopping  = "STOPPING=1"
	alive     = "WATCHDOG=1"
)

// Status replaces line breaks, which would begin another line.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, text)
}

// Extend asks for time until d from now; it never shortens the manager's timeout.
func Extend(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// MainPID names the process that the manager supervises from now on, in place of the sender.
func MainPID(pid int) string { return "MAINPID=" + strconv.Itoa(pid) }

// sendTimeout: a stop must not wait for a manager that does not read.
const sendTimeout = 5 * time.Second

// Manager is the service manager; nil does nothing. Safe for concurrent use.
type Manager struct {
	addr     net.UnixAddr
	watchdog time.Duration // limit between signs of life; 0: none

	mu   sync.Mutex
	conn *net.UnixConn // kept open for a process out of descriptors; nil: dial first
}

// FromEnvironment returns nil if there is no manager. Malformed variables are an error, since a
// manager without messages kills the process.
func FromEnvironment(getenv func(string) string) (*Manager, error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET %q is neither a path nor an abstract name", path)
	}
	m := &Manager{addr: net.UnixAddr{Name: path, Net: "unixgram"}}
	if usec := getenv("WATCHDOG_USEC"); usec != "" && forThisProcess(getenv("WATCHDOG_PID")) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(maxWatchdog/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC %q is no number of microseconds", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	if err := m.dialLocked(); err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return m, nil
}

// maxWatchdog prevents overflow in the conversion.
const maxWatchdog = 365 * 24 * time.Hour

// forThisProcess: children inherit the variables.
func forThisProcess(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }

// Send sends the lines as one message. It blocks for at most sendTimeout per attempt.
func (m *Manager) Send(lines ...string) error {
	if m == nil {
		return nil
	}
	text := []byte(strings.Join(lines, "\n"))
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.writeLocked(text)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// A restarted manager makes a new socket.
		m.closeLocked()
		err = m.writeLocked(text)
	}
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

func (m *Manager) writeLocked(text []byte) error {
	if m.conn == nil {
		if err := m.dialLocked(); err != nil {
			return err
		}
	}
	if err := m.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err := m.conn.Write(text)
	return err
}

func (m *Manager) dialLocked() (err error) {
	m.conn, err = net.DialUnix("unixgram", nil, &m.addr)
	return err
}

func (m *Manager) closeLocked() {
	if m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

func (m *Manager) Close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closeLocked()
}

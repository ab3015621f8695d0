// Package notify tells the service manager that started this process how it is
// doing: sd_notify(3), which systemd, podman, s6 and others speak. It is one
// datagram of NAME=VALUE lines per message, to the socket named by
// NOTIFY_SOCKET; what the names mean is the manager's.
//
// It knows nothing of what it speaks for: whether that works is asked of the
// caller (see Watch).
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

// Lines of messages, as sd_notify(3) defines them.
const (
	Ready     = "READY=1"     // started, or done with reloading
	Reloading = "RELOADING=1" // until the next Ready
	Stopping  = "STOPPING=1"
	alive     = "WATCHDOG=1"
)

// Status is the line of free text that systemctl status shows. One line: breaks
// become spaces, since what follows one would be a statement of its own.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, text)
}

// Extend asks for patience with the start or the stop that is under way: d from
// now, however little the manager was configured to grant. It never shortens.
func Extend(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// sendTimeout bounds one message. The socket's queue is full when the manager
// has not read for a while; a stop must not wait for it.
const sendTimeout = 5 * time.Second

// Manager is the service manager. A nil one is nobody: every method does
// nothing then. Safe for concurrent use.
type Manager struct {
	addr     net.UnixAddr
	watchdog time.Duration

	mu   sync.Mutex
	conn *net.UnixConn // kept, so that a process out of descriptors can still be heard; nil: to be dialled
}

// FromEnvironment finds the manager in the variables that it set, which getenv
// reads. It returns nil if there is none, and an error if the variables are not
// what sd_notify(3) says: a process whose manager waits for a word that cannot
// be sent would be ended in the middle of its work.
func FromEnvironment(getenv func(string) string) (*Manager, error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET %q is neither a path nor an abstract name", path)
	}
	m := &Manager{addr: net.UnixAddr{Name: path, Net: "unixgram"}} // net knows the @
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

// maxWatchdog keeps the conversion from overflowing.
const maxWatchdog = 365 * 24 * time.Hour

// forThisProcess says whether the watchdog is meant for this process: the
// variables are inherited, by a child of the one they were set for too.
func forThisProcess(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }

// Watchdog is after how long without a sign of life the manager ends the
// process; 0 means never.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog
}

// Send sends the lines as one message, so that they take effect together. It
// waits some seconds at most.
func (m *Manager) Send(lines ...string) error {
	if m == nil {
		return nil
	}
	text := []byte(strings.Join(lines, "\n"))
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.writeLocked(text)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// The socket may have been made anew by a manager that was restarted.
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

// Close gives the socket back. A later Send opens it again.
func (m *Manager) Close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closeLocked()
}

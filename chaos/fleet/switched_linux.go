package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"grapevine/chaos/netswitch"
)

// switched is the inside of an isolated process whose fleet has links of its own: every member is in a network namespace with one
// interface, whose other end is a port of a switch in this process. The process's namespace has a port, too, which no fault reaches.
type switched struct {
	sw     *netswitch.Switch
	home   int // descriptor of the process's namespace
	places map[string]*place
	end    context.CancelFunc // of the places
}

// place is a member's network namespace. It lives as long as its thread, the descriptor, or a process started from the thread.
type place struct {
	thread *thread
	ns     int             // its descriptor
	home   int             // that of the process
	life   context.Context // ends with the fleet
}

// harnessName is the port of the process itself.
const harnessName = "harness"

// newWires makes the switch and a place for each member, in their order.
func newWires(seed uint64, members []string) (_ wires, err error) {
	if !Isolated() {
		return nil, errNotIsolated
	}
	if len(members) > maxMembers {
		return nil, fmt.Errorf("fleet: %d members, want at most %d", len(members), maxMembers)
	}
	home, err := openNetwork()
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	s := &switched{sw: netswitch.New(seed), home: home, places: map[string]*place{}, end: end}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.port(harnessName, netip.MustParseAddr(hostOf(1)), true); err != nil {
		return nil, err
	}
	for m, name := range members {
		p := &place{ns: -1, home: home, life: life}
		p.thread, err = newThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if p.ns, err = openNetwork(); err != nil {
				return err
			}
			return s.port(name, netip.MustParseAddr(memberHost(m)), false)
		})
		if err != nil {
			if p.ns >= 0 {
				_ = unix.Close(p.ns)
			}
			return nil, fmt.Errorf("fleet: network namespace of %s: %w", name, err)
		}
		s.places[name] = p
	}
	return s, nil
}

// port opens a port of the switch in the namespace of the calling thread.
func (s *switched) port(name string, addr netip.Addr, immune bool) error {
	dev, err := netswitch.OpenTUN("eth0", netip.PrefixFrom(addr, 24))
	if err != nil {
		return err
	}
	if err := s.sw.Attach(netswitch.Port{Name: name, Addr: addr, Device: dev, Immune: immune}); err != nil {
		return errors.Join(err, dev.Close())
	}
	return nil
}

func (s *switched) of(member int, v service) string {
	return net.JoinHostPort(memberHost(member), strconv.Itoa(servicePort+int(v)))
}

func (s *switched) at(name string) where { return s.places[name] }

func (s *switched) thread(name string) *thread { return s.places[name].thread }

func (s *switched) setLink(from, to string, l Link) error { return s.sw.SetLink(from, to, l) }

func (s *switched) reset(a, b string) error {
	_, err := s.sw.Reset(a, b)
	return err
}

func (s *switched) heal() error {
	s.sw.Heal()
	return nil
}

// Close takes down the switch and the places. Whatever runs in them should have ended.
func (s *switched) Close() error {
	s.end()
	err := s.sw.Close()
	for _, p := range s.places {
		p.thread.close()
		err = errors.Join(err, unix.Close(p.ns))
	}
	return errors.Join(err, unix.Close(s.home))
}

// linkable returns nil if this process can have links of its own, in a network namespace at least: one port is made.
func linkable() error {
	if err := netswitch.Available(); err != nil || os.Getuid() != 0 {
		return err // who is not root is so in a process of Isolate
	}
	t, err := newThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("fleet: network namespace: %w", err)
		}
		dev, err := netswitch.OpenTUN("eth0", netip.PrefixFrom(netip.MustParseAddr(hostOf(1)), 24))
		if err != nil {
			return err
		}
		return dev.Close()
	})
	if err == nil {
		t.close()
	}
	return err
}

// openNetwork returns a descriptor of the calling thread's network namespace.
func openNetwork() (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("fleet: own network namespace: %w", err)
	}
	return fd, nil
}

// enter runs f on a thread in the place's network: sockets that f opens itself, not in another goroutine, are there for good. Calls do not
// wait for each other.
func (p *place) enter(f func() error) error {
	return p.visit(func(func()) error { return f() })
}

// visit is enter for those who are in the place only until they call leave, from the same goroutine.
func (p *place) visit(f func(leave func()) error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(p.ns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("fleet: enter network namespace: %w", err)
			return
		}
		left := false
		leave := func() {
			if !left && unix.Setns(p.home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread() // or else the thread ends with the goroutine, and nothing else runs where it is
			}
			left = true
		}
		err := f(leave)
		leave()
		result <- err
	}()
	return <-result
}

// errOneSocket is returned when a connection would take a second socket, which would be made outside of the place.
var errOneSocket = errors.New("fleet: dial from a place: no address to connect from")

// dial connects from the place. The address must be literal: a name would be looked up on another thread. It is in the place only while the
// socket is made, or each of many connections to somebody who does not answer would keep a thread to itself. It ends with the place: a
// http.Transport goes on to connect for minutes when nobody wants it any more.
func (p *place) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, perr := netip.ParseAddrPort(address); perr != nil {
		return nil, fmt.Errorf("fleet: dial from a place: %w", perr)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	err = p.visit(func(leave func()) error {
		made := false
		d := net.Dialer{Control: func(_, _ string, _ syscall.RawConn) error {
			if made {
				return errOneSocket
			}
			made = true
			leave()
			return nil
		}}
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func (p *place) listen(address string) (ln net.Listener, err error) {
	err = p.enter(func() error {
		ln, err = net.Listen("tcp", address)
		return err
	})
	return ln, err
}

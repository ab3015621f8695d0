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

// switched has a namespace per member, whose interface leads to a port of a switch in this process.
// No fault reaches the process's own port.
type switched struct {
	sw     *netswitch.Switch
	home   int
	places map[string]*place
	end    context.CancelFunc
}

// place is a member's network namespace, alive as long as its thread, descriptor or processes.
type place struct {
	thread *thread
	ns     int
	home   int
	life   context.Context
}

const harnessName = "harness"

func newSwitched(seed uint64, members []string) (_ network, err error) {
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

func (s *switched) links() (*netswitch.Switch, error) { return s.sw, nil }

// Close closes the switch and the places.
func (s *switched) Close() error {
	s.end()
	err := s.sw.Close()
	for _, p := range s.places {
		p.thread.close()
		err = errors.Join(err, unix.Close(p.ns))
	}
	return errors.Join(err, unix.Close(s.home))
}

func linkable() error {
	if err := netswitch.Available(); err != nil || os.Getuid() != 0 {
		return err // without root, a process of Isolate may still succeed
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

func openNetwork() (int, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("fleet: own network namespace: %w", err)
	}
	return fd, nil
}

func (p *place) enter(f func() error) error {
	return p.visit(func(func()) error { return f() })
}

// visit is enter; f calls leave when it no longer needs the place.
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
				runtime.UnlockOSThread() // otherwise the thread ends with the goroutine, so that no other code runs in the place
			}
			left = true
		}
		err := f(leave)
		leave()
		result <- err
	}()
	return <-result
}

// errOneSocket refuses a second socket, which would open outside of the place.
var errOneSocket = errors.New("fleet: dial from a place: no address to connect from")

// dial needs a literal address, because a name would be resolved on another thread.
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

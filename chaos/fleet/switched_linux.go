package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"grapevine.example/chaos/netswitch"
)

// switched has a namespace per member, whose interface leads to a port of a switch in this process.
// No fault reaches the process's own port.
type switched struct {
	sw     *netswitch.Switch
	places map[string]*place
	end    context.CancelFunc
}

// place is a member's network namespace, alive as long as its thread or processes.
type place struct {
	thread *thread
	life   context.Context
}

const harnessName = "harness"

var ownNet = subnet{10, 77, 0}

func newSwitched(seed uint64, members []string) (_ network, err error) {
	if !Isolated() {
		return nil, errNotIsolated
	}
	if len(members) > maxMembers {
		return nil, fmt.Errorf("fleet: %d members, want at most %d", len(members), maxMembers)
	}
	life, end := context.WithCancel(context.Background())
	s := &switched{sw: netswitch.New(seed), places: map[string]*place{}, end: end}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.port(harnessName, ownNet.host(1), true); err != nil {
		return nil, err
	}
	for m, name := range members {
		t, err := newThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return s.port(name, ownNet.host(10+m), false)
		})
		if err != nil {
			return nil, fmt.Errorf("fleet: network namespace of %s: %w", name, err)
		}
		s.places[name] = &place{t, life}
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
	return ownNet.of(member, servicePort+int(v))
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
	}
	return err
}

func linkable() error {
	if err := netswitch.Available(); err != nil || os.Getuid() != 0 {
		return err // without root, a process of Isolate may still succeed
	}
	t, err := newThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("fleet: network namespace: %w", err)
		}
		dev, err := netswitch.OpenTUN("eth0", netip.PrefixFrom(ownNet.host(1), 24))
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

func (p *place) enter(f func() error) error { return p.thread.do(f) }

// dial makes a socket in the place take the descriptor of the dialer's socket before it connects,
// because waiting for the connection on the place's thread would delay others.
func (p *place) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	d := net.Dialer{Control: func(_, _ string, dialing syscall.RawConn) error {
		var made error
		err := dialing.Control(func(fd uintptr) {
			made = p.enter(func() error {
				own, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				return errors.Join(unix.Dup3(own, int(fd), unix.O_CLOEXEC), unix.Close(own))
			})
		})
		return errors.Join(err, made)
	}}
	return d.DialContext(ctx, network, address)
}

func (p *place) listen(address string) (ln net.Listener, err error) {
	err = p.enter(func() error {
		ln, err = net.Listen("tcp", address)
		return err
	})
	return ln, err
}

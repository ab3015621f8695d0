package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strconv"

	"grapevine/chaos/netswitch"
)

type service uint8

const (
	dataPort service = iota
	adminPort
	gossipPort
	services
)

// One byte of an address numbers the members.
const maxMembers = 200

// loopback leases a /24 of 127.0.0.0/8 on Linux, elsewhere a block of ports, below the kernel's
// ephemeral range. A listener on the first address keeps other fleets out until Close.
type loopback struct {
	guard net.Listener
	net   [3]byte
	base  int
	block bool
	own   *thread
}

const (
	leasePort   = 17900 // of the guard
	servicePort = 18000
	tries       = 64
)

var errNoAddresses = errors.New("fleet: no free loopback addresses")

func lease(members int) (*loopback, error) {
	if members > maxMembers {
		return nil, fmt.Errorf("fleet: %d members, want at most %d", members, maxMembers)
	}
	for range tries {
		if l := tryLease(members); l != nil {
			var err error
			if l.own, err = newThread(nil); err != nil {
				return nil, errors.Join(err, l.guard.Close())
			}
			return l, nil
		}
	}
	return nil, errNoAddresses
}

// tryLease ignores seeds, because fleets with equal seeds would collide.
func tryLease(members int) *loopback {
	l := &loopback{net: [3]byte{127, byte(64 + rand.IntN(128)), byte(rand.IntN(256))}, base: servicePort + 10*rand.IntN(64)}
	guard := leasePort
	if l.block = runtime.GOOS != "linux"; l.block {
		l.net = [3]byte{127, 0, 0}
		guard = 10_000 + 1_000*rand.IntN(20)
		l.base = guard + 1
	}
	ln, err := net.Listen("tcp", l.host(1)+":"+strconv.Itoa(guard))
	if err != nil {
		return nil
	}
	l.guard = ln
	// A service on all addresses of the machine may hold one of these ports.
	if !l.free(members) {
		_ = ln.Close()
		return nil
	}
	return l
}

func (l *loopback) free(members int) bool {
	for m := range members {
		for s := range services {
			ln, err := net.Listen("tcp", l.of(m, s))
			if err != nil {
				return false
			}
			_ = ln.Close()
			if s != gossipPort {
				continue
			}
			pc, err := net.ListenPacket("udp", l.of(m, s))
			if err != nil {
				return false
			}
			_ = pc.Close()
		}
	}
	return true
}

func (l *loopback) host(last int) string {
	return netip.AddrFrom4([4]byte{l.net[0], l.net[1], l.net[2], byte(last)}).String()
}

func (l *loopback) of(member int, s service) string {
	if l.block {
		return net.JoinHostPort(l.host(1), strconv.Itoa(l.base+member*int(services)+int(s)))
	}
	return net.JoinHostPort(l.host(10+member), strconv.Itoa(l.base+int(s)))
}

func (l *loopback) at(string) where { return here{} }

func (l *loopback) thread(string) *thread { return l.own }

func (l *loopback) links() (*netswitch.Switch, error) { return nil, errNotSwitched }

// Close gives the addresses back.
func (l *loopback) Close() error {
	l.own.close()
	return l.guard.Close()
}

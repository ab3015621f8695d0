package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"

	"grapevine.example/chaos/netswitch"
)

type service uint8

const (
	dataPort service = iota
	adminPort
	gossipPort
	services
)

// subnet is a /24 whose first address is the harness's; member m has the address 10 + m.
type subnet [3]byte

func (s subnet) host(last int) netip.Addr {
	return netip.AddrFrom4([4]byte{s[0], s[1], s[2], byte(last)})
}

func (s subnet) of(member, port int) string {
	return netip.AddrPortFrom(s.host(10+member), uint16(port)).String()
}

// One byte of an address numbers the members.
const maxMembers = 200

// loopback leases a /24 of 127.0.0.0/8 on Linux, elsewhere a block of ports, below the kernel's
// ephemeral range. A listener on the first address keeps other fleets out until Close.
type loopback struct {
	guard net.Listener
	net   subnet
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

func lease(members int) (network, error) {
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
	l := &loopback{net: subnet{127, byte(64 + rand.IntN(128)), byte(rand.IntN(256))}, base: servicePort + 10*rand.IntN(64)}
	guard := leasePort
	if l.block = runtime.GOOS != "linux"; l.block {
		l.net = subnet{127, 0, 0}
		guard = 10_000 + 1_000*rand.IntN(20)
		l.base = guard + 1
	}
	ln, err := net.Listen("tcp", netip.AddrPortFrom(l.net.host(1), uint16(guard)).String())
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

func (l *loopback) of(member int, s service) string {
	if l.block {
		return netip.AddrPortFrom(l.net.host(1), uint16(l.base+member*int(services)+int(s))).String()
	}
	return l.net.of(member, l.base+int(s))
}

func (l *loopback) at(string) where { return here{} }

func (l *loopback) thread(string) *thread { return l.own }

func (l *loopback) links() (*netswitch.Switch, error) { return nil, errNotSwitched }

// Close gives the addresses back.
func (l *loopback) Close() error {
	l.own.close()
	return l.guard.Close()
}

package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strconv"
)

// service is a port that a member of a fleet listens on.
type service uint8

const (
	dataPort service = iota
	adminPort
	gossipPort
	services // how many there are
)

// addresses gives every member of a fleet, by its index, an address for each service that nobody else uses as long as the fleet lives,
// so that a member that was killed finds it free when it starts again.
type addresses interface {
	of(member int, s service) string // host:port
	Close() error
}

// maxMembers bounds nodes, engines and balancer of one fleet together: the last number of an address names them.
const maxMembers = 200

// loopback leases addresses on this machine. On Linux all of 127.0.0.0/8 is the machine itself, so a fleet takes a /24 of it; elsewhere
// 127.0.0.1 alone is, so it takes a block of ports. A listener on the first address of the block, held until Close, keeps other
// fleets out, in this process and in others; all ports lie below those that the kernel hands out to clients.
type loopback struct {
	guard net.Listener
	net   [3]byte // the first three numbers of its addresses
	base  int     // port of service 0
	block bool    // members are told apart by port
}

const (
	leasePort   = 17900 // of the guard
	servicePort = 18000 // and up: where the services of a subnet are looked for
	tries       = 64
)

// errNoAddresses is returned when everything tried was taken.
var errNoAddresses = errors.New("fleet: no free loopback addresses")

// lease takes addresses for so many members, all of them free at this moment.
func lease(members int) (*loopback, error) {
	if members > maxMembers {
		return nil, fmt.Errorf("fleet: %d members, want at most %d", members, maxMembers)
	}
	for range tries {
		if l := tryLease(members); l != nil {
			return l, nil
		}
	}
	return nil, errNoAddresses
}

// tryLease draws a block anywhere; where is no part of what a seed decides, or two fleets with the same seed would always meet.
func tryLease(members int) *loopback {
	l := &loopback{net: [3]byte{127, byte(64 + rand.IntN(128)), byte(rand.IntN(256))}, base: servicePort}
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
	// Something that listens on all addresses of the machine may have a port of ours; then others are tried.
	for range tries {
		if l.free(members) {
			return l
		}
		if l.block {
			break
		}
		l.base += 10
	}
	_ = ln.Close()
	return nil
}

// free says whether every address can be bound now, by TCP, and UDP where gossip uses it too.
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

// Close gives the addresses back. Whatever listens on them should be gone.
func (l *loopback) Close() error { return l.guard.Close() }

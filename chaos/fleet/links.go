package fleet

import (
	"context"
	"errors"
	"net"

	"grapevine/chaos/netswitch"
)

// Link says what happens to the packets that go from one member to another; zero is a link that does nothing to them.
type Link = netswitch.Link

// The names of the members of a switched fleet that are neither nodes nor engines, and the one that stands for all members.
const (
	BalancerName = "balancer" // where clients connect to
	ClientsName  = "clients"  // where DialClient connects from
	Everybody    = "*"
)

// wires are the links of a switched fleet, and the places that they join.
type wires interface {
	addresses
	setLink(from, to string, l Link) error
	reset(a, b string) error
	heal() error
	at(name string) where
	thread(name string) *thread // on it, processes are started that are to be there
}

// where is a place in the network.
type where interface {
	// enter runs f; sockets that f opens itself, not in another goroutine, belong to the place.
	enter(f func() error) error
	dial(ctx context.Context, network, address string) (net.Conn, error)
	listen(address string) (net.Listener, error)
}

// here is where this process is.
type here struct{}

func (here) enter(f func() error) error { return f() }

func (here) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

func (here) listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// at returns where a member is.
func (f *Fleet) at(name string) where {
	if f.wires == nil {
		return here{}
	}
	return f.wires.at(name)
}

// errNotSwitched is returned for links of a fleet that has none of its own.
var errNotSwitched = errors.New("fleet: only a switched fleet has links")

// SetLink makes the link from one member to another, in that direction, what l says, from the next packet on. The names are those of
// nodes and engines, BalancerName, ClientsName, and Everybody. What the harness itself asks of nodes and engines (admin
// APIs, readiness) passes unharmed always.
func (f *Fleet) SetLink(from, to string, l Link) error {
	if f.wires == nil {
		return errNotSwitched
	}
	return f.wires.setLink(from, to, l)
}

// ResetLink ends every TCP connection between two members, or Everybody, with a reset at both ends.
func (f *Fleet) ResetLink(a, b string) error {
	if f.wires == nil {
		return errNotSwitched
	}
	return f.wires.reset(a, b)
}

// Heal ends all that SetLink and Partition did. Packets under way arrive when they would have.
func (f *Fleet) Heal() error {
	if f.wires == nil {
		return errNotSwitched
	}
	return f.wires.heal()
}

// DialClient connects to a literal address as a client of the fleet: from the clients' place in a switched fleet, else from this process. It
// has the form that http.Transport wants.
func (f *Fleet) DialClient(ctx context.Context, network, address string) (net.Conn, error) {
	return f.at(ClientsName).dial(ctx, network, address)
}

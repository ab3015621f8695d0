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

// wires are the links of a switched fleet.
type wires interface {
	setLink(from, to string, l Link) error
	reset(a, b string) error
	heal() error
	dial(ctx context.Context, from, network, address string) (net.Conn, error)
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

// HealLinks ends all that SetLink and Partition did. Packets under way arrive when they would have.
func (f *Fleet) HealLinks() error {
	if f.wires == nil {
		return errNotSwitched
	}
	return f.wires.heal()
}

// DialClient connects to a literal address as a client of the fleet: from the clients' place in a switched fleet, else from this process. It
// has the form that http.Transport wants.
func (f *Fleet) DialClient(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if f.wires == nil {
		return d.DialContext(ctx, network, address)
	}
	return f.wires.dial(ctx, ClientsName, network, address)
}

package fleet

import (
	"context"
	"errors"
	"net"

	"grapevine.example/chaos/netswitch"
)

// Link is the faults of packets from one member to another.
type Link = netswitch.Link

// Members other than nodes and engines, and the wildcard for all.
const (
	BalancerName = "balancer"
	ClientsName  = "clients"
	Everybody    = "*"
)

type network interface {
	// of is a member's address, reserved until Close, so that a killed member can bind it again.
	of(member int, s service) string
	at(name string) where
	thread(name string) *thread
	links() (*netswitch.Switch, error)
	Close() error
}

type where interface {
	// enter runs f; sockets that f itself opens belong to the place.
	enter(f func() error) error
	dial(ctx context.Context, network, address string) (net.Conn, error)
	listen(address string) (net.Listener, error)
}

type here struct{}

func (here) enter(f func() error) error { return f() }

func (here) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

func (here) listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

var errNotSwitched = errors.New("fleet: only a switched fleet has links")

// SetLink sets the faults from one member to another. The harness's own requests always pass.
func (f *Fleet) SetLink(from, to string, l Link) error {
	sw, err := f.net.links()
	if err == nil {
		err = sw.SetLink(from, to, l)
	}
	return err
}

// ResetLink resets every TCP connection between two members, or Everybody, at both ends.
func (f *Fleet) ResetLink(a, b string) error {
	sw, err := f.net.links()
	if err == nil {
		_, err = sw.Reset(a, b)
	}
	return err
}

// Heal undoes SetLink and Partition; delayed packets still arrive.
func (f *Fleet) Heal() error {
	sw, err := f.net.links()
	if err == nil {
		sw.Heal()
	}
	return err
}

// DialClient connects from the clients' place to a literal address.
func (f *Fleet) DialClient(ctx context.Context, network, address string) (net.Conn, error) {
	return f.net.at(ClientsName).dial(ctx, network, address)
}

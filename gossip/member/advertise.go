package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"grapevine.example/gossip/discovery"
)

var errNoAddress = errors.New("no address that other nodes could dial: give --gossip-advertise")

// See Config.Advertise.
func (l *List) advertise(ctx context.Context, t *transport) (netip.AddrPort, error) {
	host, port := "", t.bound().Port
	if l.cfg.Advertise != "" {
		var (
			text string
			err  error
		)
		if host, text, err = splitPort(l.cfg.Advertise); err != nil {
			return netip.AddrPort{}, fmt.Errorf("advertised gossip address: %w", err)
		}
		if text != "" {
			if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
				return netip.AddrPort{}, fmt.Errorf("advertised gossip address: port %q", text)
			}
		}
	}
	if host == "" { // the bound address, because a name may have several
		host = t.bound().IP.String()
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && ip.IsUnspecified():
		ip, err = l.ownAddress(ctx)
	case err != nil:
		var ips []netip.Addr
		if ips, err = discovery.LookupHost(ctx, host); err == nil {
			ip = ips[0]
		}
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("advertised gossip address: %w", err)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}

func (l *List) ownAddress(ctx context.Context) (netip.Addr, error) {
	for _, s := range l.cfg.Join {
		addrs, _ := l.seeds.resolve(ctx, s)
		if len(addrs) == 0 {
			continue // the join rounds report the error
		}
		// Connecting a datagram socket only looks up the route.
		var d net.Dialer
		c, err := d.DialContext(ctx, "udp", addrs[0])
		if err != nil {
			continue
		}
		local, err := netip.ParseAddrPort(c.LocalAddr().String())
		_ = c.Close()
		if err == nil && !local.Addr().IsUnspecified() {
			return local.Addr().Unmap(), nil
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	var found netip.Addr
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			if ip := prefix.Addr().Unmap(); addressRank(ip) > addressRank(found) {
				found = ip
			}
		}
	}
	if addressRank(found) == 0 {
		return netip.Addr{}, errNoAddress
	}
	return found, nil
}

func addressRank(ip netip.Addr) int {
	switch {
	case !ip.IsGlobalUnicast():
		return 0
	case ip.Is4() && ip.IsPrivate():
		return 4
	case ip.Is4():
		return 3
	case ip.IsPrivate():
		return 2
	}
	return 1
}

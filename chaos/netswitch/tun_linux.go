package netswitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const tunPath = "/dev/net/tun"

const (
	portMTU = 1500
	// portQueue is in packets. The default of 500 is less than one TCP connection may have in
	// flight.
	portQueue = 10_000
)

// Available returns why this process cannot open ports in its network namespace, or nil.
func Available() error {
	f, err := os.OpenFile(tunPath, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("netswitch: no ports: %w", err)
	}
	return f.Close()
}

// OpenTUN makes a network interface in the calling thread's network namespace, brings it and
// loopback up, and returns the switch's end, whose Close removes it.
func OpenTUN(name string, addr netip.Prefix) (_ *os.File, err error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("netswitch: open %s: %w", tunPath, err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("netswitch: interface %q: %w", name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("netswitch: interface %q: %w", name, err)
	}
	if err := configure(name, addr); err != nil {
		return nil, err
	}
	// A poller that watches the descriptor before it is an interface never wakes.
	return os.NewFile(uintptr(fd), tunPath), nil
}

func configure(name string, addr netip.Prefix) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("netswitch: socket: %w", err)
	}
	defer func() { _ = unix.Close(s) }()
	ip := addr.Addr().As4()
	mask := [4]byte{}
	for i := range addr.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	var errs []error
	set := func(call uint, value func(*unix.Ifreq) error) { errs = append(errs, order(s, name, call, value)) }
	errs = append(errs, order(s, "lo", unix.SIOCSIFFLAGS, up))
	set(unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ip[:]) })
	set(unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) })
	set(unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(portMTU); return nil })
	if err := lengthen(name, portQueue); err != nil {
		errs = append(errs, fmt.Errorf("netswitch: queue of interface %s: %w", name, err))
	}
	set(unix.SIOCSIFFLAGS, up)
	return errors.Join(errs...)
}

func order(socket int, name string, call uint, value func(*unix.Ifreq) error) error {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = value(req)
	}
	if err == nil {
		err = unix.IoctlIfreq(socket, call, req)
	}
	if err != nil {
		return fmt.Errorf("netswitch: interface %s: %w", name, err)
	}
	return nil
}

func up(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }

func RaiseLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("netswitch: socket: %w", err)
	}
	return errors.Join(order(s, "lo", unix.SIOCSIFFLAGS, up), unix.Close(s))
}

// lengthen uses netlink: the older ioctl refuses root of a user namespace.
func lengthen(name string, packets uint32) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	const size = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg + unix.SizeofRtAttr + 4
	order, msg := binary.NativeEndian, make([]byte, size)
	order.PutUint32(msg, size)
	order.PutUint16(msg[4:], unix.RTM_NEWLINK)
	order.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	order.PutUint32(msg[unix.SizeofNlMsghdr+4:], uint32(link.Index))
	attr := msg[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:]
	order.PutUint16(attr, uint16(len(attr)))
	order.PutUint16(attr[2:], unix.IFLA_TXQLEN)
	order.PutUint32(attr[4:], packets)
	if err := unix.Sendto(s, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4*size)
	n, _, err := unix.Recvfrom(s, answer, 0)
	switch {
	case err != nil:
		return err
	case n < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR:
		return errors.New("not answered")
	}
	if errno := -int32(order.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

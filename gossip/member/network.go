package member

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

type network interface {
	listen(bind string) (net.Listener, packetConn, error) // TCP and UDP on one port
	dial(ctx context.Context, addr string) (net.Conn, error)
}

type packetConn interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	Close() error
}

type hostNetwork struct{}

// udpBuffer is for bursts, in bytes.
const udpBuffer = 2 << 20

func (hostNetwork) listen(bind string) (net.Listener, packetConn, error) {
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, nil, err
	}
	// A port that is free for TCP may be taken for UDP.
	tries := 1
	if port == "0" {
		tries = 20
	}
	for {
		tcp, err := net.Listen("tcp", bind)
		if err != nil {
			return nil, nil, err
		}
		p, err := net.ListenPacket("udp", net.JoinHostPort(host, fmt.Sprint(tcp.Addr().(*net.TCPAddr).Port)))
		if err == nil {
			udp := p.(*net.UDPConn)
			_ = udp.SetReadBuffer(udpBuffer) // a smaller one only loses more of a burst
			return tcp, udp, nil
		}
		_ = tcp.Close()
		if tries--; tries == 0 {
			return nil, nil, err
		}
	}
}

func (hostNetwork) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

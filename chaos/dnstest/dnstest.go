// Package dnstest is a name server for tests.
package dnstest

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// asked has the address of the name server of the running test; nil: the system's.
var asked atomic.Pointer[net.UDPAddr]

// Once and for good: every dial reads net.DefaultResolver, and memberlist still dials while a test ends.
func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, system string) (net.Conn, error) {
		var dialer net.Dialer
		if server := asked.Load(); server != nil {
			return dialer.DialContext(ctx, "udp", server.String())
		}
		return dialer.DialContext(ctx, network, system)
	}}
}

// Server is a name server on loopback. Safe for concurrent use.
type Server struct {
	mu    sync.Mutex
	hosts map[string][]netip.Addr
	srv   map[string][]net.SRV
}

// Start makes all lookups of the process go to a new server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	d := &Server{hosts: make(map[string][]netip.Addr), srv: make(map[string][]net.SRV)}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	before := asked.Swap(udp.LocalAddr().(*net.UDPAddr))
	t.Cleanup(func() {
		asked.Store(before)
		_ = udp.Close()
	})
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(d.answer(buf[:n]), from)
		}
	}()
	return d
}

// Host sets the addresses of a name.
func (d *Server) Host(name string, addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hosts[name] = nil
	for _, a := range addrs {
		d.hosts[name] = append(d.hosts[name], netip.MustParseAddr(a))
	}
}

// Service sets the SRV records of a name.
func (d *Server) Service(name string, records ...net.SRV) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.srv[name] = records
}

// answer answers the one question of a query (RFC 1035, 4.1).
func (d *Server) answer(query []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	var labels []string
	at := 12
	for query[at] > 0 {
		n := int(query[at])
		labels = append(labels, string(query[at+1:at+1+n]))
		at += 1 + n
	}
	name, kind := strings.Join(labels, "."), binary.BigEndian.Uint16(query[at+1:])
	reply := append([]byte{query[0], query[1], 0x84, 0, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:at+5]...)
	add := func(data []byte) {
		reply[7]++
		reply = append(reply, 0xc0, 12, byte(kind>>8), byte(kind), 0, 1, 0, 0, 0, 0)
		reply = append(binary.BigEndian.AppendUint16(reply, uint16(len(data))), data...)
	}
	hosts, known := d.hosts[name]
	for _, ip := range hosts {
		if ip.Is4() && kind == 1 || ip.Is6() && kind == 28 {
			add(ip.AsSlice())
		}
	}
	services, service := d.srv[name]
	for _, s := range services {
		data := binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0}, s.Port)
		for label := range strings.SplitSeq(strings.TrimSuffix(s.Target, "."), ".") {
			data = append(append(data, byte(len(label))), label...)
		}
		add(append(data, 0))
	}
	if !known && !service {
		reply[3] = 3 // no such name
	}
	return reply
}

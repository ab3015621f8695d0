package netswitch

import (
	"encoding/binary"
	"net/netip"
)

// Offsets and values of IPv4 (RFC 791) and TCP (RFC 9293).
const (
	ipHeader  = 20
	tcpHeader = 20
	protoTCP  = 6

	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

type packet []byte

func parse(b []byte) (p packet, ok bool) {
	if len(b) < ipHeader || b[0]>>4 != 4 {
		return nil, false
	}
	length, header := int(binary.BigEndian.Uint16(b[2:])), int(b[0]&0xf)*4
	if header < ipHeader || length < header || length > len(b) {
		return nil, false
	}
	return b[:length], true
}

func (p packet) src() netip.Addr { return netip.AddrFrom4([4]byte(p[12:16])) }
func (p packet) dst() netip.Addr { return netip.AddrFrom4([4]byte(p[16:20])) }

// tcp is not ok for other protocols and later fragments.
func (p packet) tcp() (s segment, ok bool) {
	header := int(p[0]&0xf) * 4
	offset := binary.BigEndian.Uint16(p[6:]) & 0x1fff
	if p[9] != protoTCP || offset != 0 || len(p) < header+tcpHeader {
		return nil, false
	}
	s = segment(p[header:])
	if n := int(s[12]>>4) * 4; n < tcpHeader || n > len(s) {
		return nil, false
	}
	return s, true
}

type segment []byte

func (s segment) ports() (from, to uint16) {
	return binary.BigEndian.Uint16(s), binary.BigEndian.Uint16(s[2:])
}
func (s segment) seq() uint32 { return binary.BigEndian.Uint32(s[4:]) }
func (s segment) ack() uint32 { return binary.BigEndian.Uint32(s[8:]) }
func (s segment) flags() byte { return s[13] }

func (s segment) end() uint32 {
	n := uint32(len(s)) - uint32(s[12]>>4)*4
	if s.flags()&flagSYN != 0 {
		n++
	}
	if s.flags()&flagFIN != 0 {
		n++
	}
	return s.seq() + n
}

func newReset(from, to netip.AddrPort, seq, ack uint32) packet {
	p := make(packet, ipHeader+tcpHeader)
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, protoTCP
	src, dst := from.Addr().As4(), to.Addr().As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint16(p[10:], checksum(p[:ipHeader], 0))
	s := p[ipHeader:]
	binary.BigEndian.PutUint16(s, from.Port())
	binary.BigEndian.PutUint16(s[2:], to.Port())
	binary.BigEndian.PutUint32(s[4:], seq)
	binary.BigEndian.PutUint32(s[8:], ack)
	s[12], s[13] = tcpHeader/4<<4, flagRST|flagACK
	// The pseudo header of RFC 9293, section 3.1: addresses, protocol, length.
	pseudo := sum(p[12:20], protoTCP+uint32(len(s)))
	binary.BigEndian.PutUint16(s[16:], checksum(s, pseudo))
	return p
}

func sum(b []byte, start uint32) uint32 {
	for i := 0; i < len(b); i += 2 {
		start += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return start
}

// checksum is the Internet checksum (RFC 1071) of b, of even length, added to start.
func checksum(b []byte, start uint32) uint16 {
	s := sum(b, start)
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

package netswitch

import (
	"encoding/binary"
	"testing"
	"time"
)

func tcpPacket(from, to int, back bool, flags byte, seq, ack uint32, data int) packet {
	p := make(packet, ipHeader+tcpHeader+data)
	p[0], p[9] = 0x45, protoTCP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	src, dst := addr(from).As4(), addr(to).As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	s := p[ipHeader:]
	ports := [2]uint16{1000, 80}
	if back {
		ports = [2]uint16{80, 1000}
	}
	binary.BigEndian.PutUint16(s, ports[0])
	binary.BigEndian.PutUint16(s[2:], ports[1])
	binary.BigEndian.PutUint32(s[4:], seq)
	binary.BigEndian.PutUint32(s[8:], ack)
	s[12], s[13] = tcpHeader/4<<4, flags
	return p
}

func handshake(wires map[int]*wire) {
	wires[1].out <- tcpPacket(1, 2, false, flagSYN, 99, 0, 0)
	wires[2].out <- tcpPacket(2, 1, true, flagSYN|flagACK, 499, 100, 0)
	wires[1].out <- tcpPacket(1, 2, false, flagACK, 100, 500, 0)
	wires[1].out <- tcpPacket(1, 2, false, flagACK, 100, 500, 10)
}

func resets(t *testing.T, got []arrival) (seqs []uint32, others int) {
	t.Helper()
	for _, a := range got {
		s, ok := a.packet.tcp()
		if !ok || s.flags()&flagRST == 0 {
			others++
			continue
		}
		src, dst := a.packet.src().As4(), a.packet.dst().As4()
		pseudo := sum(append(src[:], dst[:]...), protoTCP+uint32(len(s)))
		if checksum(s, pseudo) != 0 || checksum(a.packet[:ipHeader], 0) != 0 {
			t.Error("a reset with a wrong checksum")
		}
		seqs = append(seqs, s.seq())
	}
	return seqs, others
}

func TestResetBothEnds(t *testing.T) {
	virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
		handshake(wires)
		arrivals(wires[1])
		arrivals(wires[2])
		if n, err := s.Reset("b", "a"); n != 1 || err != nil {
			t.Fatalf("%d reset, %v", n, err)
		}
		if seqs, others := resets(t, arrivals(wires[1])); len(seqs) != 2 || seqs[0] != 500 || seqs[1] != 500 || others != 0 {
			t.Errorf("the client got resets %d and %d others", seqs, others)
		}
		if seqs, others := resets(t, arrivals(wires[2])); len(seqs) != 2 || seqs[0] != 100 || seqs[1] != 110 || others != 0 {
			t.Errorf("the server got resets %d and %d others", seqs, others)
		}
		if n, err := s.Reset("a", "b"); n != 0 || err != nil {
			t.Errorf("%d reset again, %v", n, err)
		}
		wires[2].out <- tcpPacket(2, 1, true, flagACK, 500, 107, 3)
		if seqs, others := resets(t, arrivals(wires[2])); len(seqs) != 1 || seqs[0] != 107 || others != 0 {
			t.Errorf("the server spoke and got resets %d and %d others", seqs, others)
		}
		wires[2].out <- tcpPacket(2, 1, true, flagRST, 500, 0, 0)
		if got := arrivals(wires[1]); len(got) != 0 {
			t.Errorf("%d packets passed", len(got))
		}
		handshake(wires)
		if _, others := resets(t, arrivals(wires[2])); others != 3 {
			t.Errorf("of a new connection the server got %d packets", others)
		}
		if _, others := resets(t, arrivals(wires[1])); others != 1 {
			t.Errorf("of a new connection the client got %d packets", others)
		}
	})
}

func TestResetLeavesOthers(t *testing.T) {
	virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
		handshake(wires)
		for _, pair := range [][2]string{{"a", "c"}, {"c", Everybody}} {
			if n, err := s.Reset(pair[0], pair[1]); n != 0 || err != nil {
				t.Errorf("%v: %d reset, %v", pair, n, err)
			}
		}
		wires[1].out <- tcpPacket(1, 2, false, flagFIN|flagACK, 110, 500, 0)
		wires[2].out <- tcpPacket(2, 1, true, flagFIN|flagACK, 500, 111, 0)
		wires[1].out <- tcpPacket(1, 4, false, flagSYN, 1, 0, 0)
		arrivals(wires[1])
		if n, err := s.Reset(Everybody, Everybody); n != 0 || err != nil {
			t.Errorf("%d reset that are over or immune, %v", n, err)
		}
		handshake(wires)
		arrivals(wires[1])
		wires[1].out <- tcpPacket(1, 2, false, flagRST, 110, 500, 0)
		arrivals(wires[1])
		if n, err := s.Reset(Everybody, Everybody); n != 0 || err != nil {
			t.Errorf("%d reset that were reset already, %v", n, err)
		}
	})
}

func TestFlowsAreBounded(t *testing.T) {
	f, now := flows{}, time.Unix(1000, 0)
	seg := func(i int, flags byte) (packet, segment) {
		p := tcpPacket(1, 2, false, flags, 1, 1, 0)
		binary.BigEndian.PutUint16(p[ipHeader:], uint16(i))
		p[13], p[14] = byte(i>>16), byte(i>>24)
		s, _ := p.tcp()
		return p, s
	}
	for i := range maxFlows * 2 {
		p, s := seg(i, flagSYN)
		if pass, answer := f.note(p, s, now.Add(time.Duration(i)*time.Millisecond)); !pass || answer != nil {
			t.Fatal("not passed")
		}
		if len(f) > maxFlows {
			t.Fatalf("%d connections are remembered", len(f))
		}
	}
	p, s := seg(maxFlows*2-1, flagACK)
	if key, _ := keyOf(p, s); f[key] == nil {
		t.Error("the latest is forgotten")
	}
}

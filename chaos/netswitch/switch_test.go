package netswitch

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"grapevine.example/chaos/bubble"
)

type wire struct {
	out    chan []byte
	closed chan struct{}
	got    chan arrival
}

type arrival struct {
	packet packet
	at     time.Time
}

func newWire() *wire {
	return &wire{out: make(chan []byte), closed: make(chan struct{}), got: make(chan arrival, 1<<16)}
}

func (w *wire) Read(p []byte) (int, error) {
	select {
	case b := <-w.out:
		return copy(p, b), nil
	case <-w.closed:
		return 0, os.ErrClosed
	}
}

func (w *wire) Write(p []byte) (int, error) {
	w.got <- arrival{slices.Clone(p), time.Now()}
	return len(p), nil
}

func (w *wire) Close() error { close(w.closed); return nil }

var _ io.ReadWriteCloser = (*wire)(nil)

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

func datagram(from, to, number, size int) packet {
	p := make(packet, max(size, ipHeader+4))
	p[0], p[9] = 0x45, 17
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	src, dst := addr(from).As4(), addr(to).As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint32(p[ipHeader:], uint32(number))
	return p
}

func numberOf(p packet) int { return int(binary.BigEndian.Uint32(p[ipHeader:])) }

func network(t *testing.T, seed uint64) (*Switch, map[int]*wire) {
	t.Helper()
	s, wires := New(seed), map[int]*wire{}
	for i, name := range []string{"a", "b", "c", "d"} {
		w := newWire()
		wires[i+1] = w
		if err := s.Attach(Port{Name: name, Addr: addr(i + 1), Device: w, Immune: name == "d"}); err != nil {
			t.Fatal(err)
		}
	}
	return s, wires
}

func set(t *testing.T, s *Switch, from, to string, l Link) {
	t.Helper()
	if err := s.SetLink(from, to, l); err != nil {
		t.Fatal(err)
	}
}

func arrivals(w *wire) (out []arrival) {
	time.Sleep(20 * time.Second)
	synctest.Wait()
	for {
		select {
		case a := <-w.got:
			out = append(out, a)
		default:
			return out
		}
	}
}

func virtually(t *testing.T, f func(t *testing.T, s *Switch, wires map[int]*wire)) {
	bubble.Test(t, func(t *testing.T) {
		s, wires := network(t, 1)
		f(t, s, wires)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFates(t *testing.T) {
	const count = 2000
	send := func(w *wire, from, to int, gap time.Duration) (sent []time.Time) {
		for i := range count {
			sent = append(sent, time.Now())
			w.out <- datagram(from, to, i, 100)
			time.Sleep(gap)
		}
		return sent
	}
	for _, test := range []struct {
		name  string
		link  Link
		check func(t *testing.T, sent []time.Time, got []arrival)
	}{
		{"delay", Link{Delay: 70 * time.Millisecond}, func(t *testing.T, sent []time.Time, got []arrival) {
			for i, a := range got {
				if numberOf(a.packet) != i || a.at.Sub(sent[i]) != 70*time.Millisecond {
					t.Fatalf("packet %d was %d, after %v", i, numberOf(a.packet), a.at.Sub(sent[i]))
				}
			}
		}},
		{"jitter", Link{Delay: 10 * time.Millisecond, Jitter: 50 * time.Millisecond}, func(t *testing.T, sent []time.Time, got []arrival) {
			var least, most time.Duration = time.Hour, 0
			for i, a := range got {
				if numberOf(a.packet) != i {
					t.Fatalf("packet %d was %d", i, numberOf(a.packet))
				}
				least, most = min(least, a.at.Sub(sent[i])), max(most, a.at.Sub(sent[i]))
			}
			if least < 10*time.Millisecond || most > 60*time.Millisecond || most < 40*time.Millisecond || most-least < 10*time.Millisecond {
				t.Errorf("delays of %v to %v", least, most)
			}
		}},
		{"loss", Link{Loss: 0.3}, func(t *testing.T, _ []time.Time, got []arrival) {
			if len(got) < count*6/10 || len(got) > count*8/10 {
				t.Errorf("%d of %d came", len(got), count)
			}
		}},
		{"nothing passes", Link{Loss: 1}, func(t *testing.T, _ []time.Time, got []arrival) {
			if len(got) != 0 {
				t.Errorf("%d came", len(got))
			}
		}},
		{"duplicate", Link{Duplicate: 0.2}, func(t *testing.T, _ []time.Time, got []arrival) {
			if len(got) < count*11/10 || len(got) > count*13/10 {
				t.Errorf("%d of %d came", len(got), count)
			}
		}},
		{"reorder", Link{Reorder: 0.1}, func(t *testing.T, sent []time.Time, got []arrival) {
			late := 0
			for _, a := range got {
				switch d := a.at.Sub(sent[numberOf(a.packet)]); d {
				case 0:
				case heldBack:
					late++
				default:
					t.Fatalf("packet %d came after %v", numberOf(a.packet), d)
				}
			}
			if late < count/20 || late > count/5 || len(got) != count {
				t.Errorf("%d of %d were late", late, len(got))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
				set(t, s, "a", "b", test.link)
				sent := send(wires[1], 1, 2, time.Millisecond)
				got := arrivals(wires[2])
				test.check(t, sent, got)
				for _, other := range [][2]int{{2, 1}, {1, 3}, {1, 4}} {
					send(wires[other[0]], other[0], other[1], 0)
					if got := arrivals(wires[other[1]]); len(got) != count {
						t.Errorf("from %d to %d: %d of %d came", other[0], other[1], len(got), count)
					}
				}
				s.Heal()
				sent = send(wires[1], 1, 2, 0)
				got = arrivals(wires[2])
				if len(got) != count {
					t.Fatalf("healed: %d of %d came", len(got), count)
				}
				for i, a := range got {
					if numberOf(a.packet) != i || a.at != sent[i] {
						t.Fatalf("healed: packet %d was %d, after %v", i, numberOf(a.packet), a.at.Sub(sent[i]))
					}
				}
			})
		})
	}
}

func TestRate(t *testing.T) {
	virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
		const rate, size, count = 1_000_000, 1000, 400
		set(t, s, "a", "b", Link{Rate: rate})
		began := time.Now()
		for i := range count {
			wires[1].out <- datagram(1, 2, i, size)
		}
		got := arrivals(wires[2])
		if len(got) != 250 {
			t.Errorf("%d of %d came, want the 250 that a queue of 0.25 s holds", len(got), count)
		}
		for i, a := range got {
			if want := time.Duration(i+1) * time.Millisecond; a.at.Sub(began) != want {
				t.Fatalf("packet %d came after %v, want %v", i, a.at.Sub(began), want)
			}
		}
	})
}

func TestNoTCP(t *testing.T) {
	virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
		set(t, s, "a", "b", Link{NoTCP: true})
		wires[1].out <- tcpPacket(1, 2, false, flagSYN, 99, 0, 0)
		wires[1].out <- datagram(1, 2, 7, 100)
		wires[2].out <- tcpPacket(2, 1, false, flagSYN, 99, 0, 0)
		if got := arrivals(wires[2]); len(got) != 1 || numberOf(got[0].packet) != 7 {
			t.Errorf("%d packets over a link for UDP only", len(got))
		}
		if got := arrivals(wires[1]); len(got) != 1 {
			t.Errorf("%d packets over the whole link back", len(got))
		}
	})
}

func TestFlightIsBounded(t *testing.T) {
	for _, l := range []Link{{Delay: time.Second}, {Delay: time.Second, Rate: 1 << 30}} {
		virtually(t, func(t *testing.T, s *Switch, wires map[int]*wire) {
			set(t, s, "a", "b", l)
			const size, count = 60_000, 400
			for i := range count {
				wires[1].out <- datagram(1, 2, i, size)
			}
			if got, want := len(arrivals(wires[2])), maxFlight/size; got != want {
				t.Errorf("%+v: %d packets came, want %d", l, got, want)
			}
			wires[1].out <- datagram(1, 2, 0, size)
			if got := len(arrivals(wires[2])); got != 1 {
				t.Errorf("%+v: later %d came, want 1", l, got)
			}
		})
	}
}

func TestSeed(t *testing.T) {
	const count = 500
	lost := func(seed uint64, from, to int, l Link) string {
		var out string
		bubble.Test(t, func(t *testing.T) {
			s, wires := network(t, seed)
			set(t, s, Everybody, Everybody, l)
			for i := range count {
				wires[from].out <- datagram(from, to, i, 50)
			}
			came := map[int]bool{}
			for _, a := range arrivals(wires[to]) {
				came[numberOf(a.packet)] = true
			}
			for i := range count {
				if !came[i] {
					out += fmt.Sprint(i, " ")
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return out
	}
	first := lost(1, 1, 2, Link{Loss: 0.5})
	if again := lost(1, 1, 2, Link{Loss: 0.5, Delay: time.Second, Jitter: time.Second, Reorder: 0.3, Duplicate: 0.3}); again != first {
		t.Errorf("the same seed lost\n%s\nand\n%s", first, again)
	}
	for what, other := range map[string]string{
		"another seed": lost(2, 1, 2, Link{Loss: 0.5}), "the other direction": lost(1, 2, 1, Link{Loss: 0.5}), "another link": lost(1, 1, 3, Link{Loss: 0.5}),
	} {
		if other == first {
			t.Errorf("%s lost the same packets", what)
		}
	}
	if got := lost(1, 1, 4, Link{Loss: 0.5}); got != "" {
		t.Errorf("lost on the way to an immune port: %s", got)
	}
}

func TestStrangers(t *testing.T) {
	virtually(t, func(t *testing.T, _ *Switch, wires map[int]*wire) {
		good := datagram(1, 2, 7, 40)
		six := slices.Clone(good)
		six[0] = 0x65
		short := slices.Clone(good)[:30]
		header := slices.Clone(good)
		header[0] = 0x44
		for _, p := range []packet{six, short, header, {}, {0x45}, datagram(3, 2, 0, 40), datagram(1, 9, 0, 40), datagram(1, 1, 0, 40), good} {
			wires[1].out <- p
		}
		for i := 1; i <= 4; i++ {
			got := arrivals(wires[i])
			if i != 2 && len(got) != 0 || i == 2 && (len(got) != 1 || numberOf(got[0].packet) != 7) {
				t.Errorf("port %d got %d packets", i, len(got))
			}
		}
	})
}

func TestAttach(t *testing.T) {
	virtually(t, func(t *testing.T, s *Switch, _ map[int]*wire) {
		for _, p := range []Port{
			{Name: "a", Addr: addr(9)}, {Name: "e", Addr: addr(1)}, {Name: "", Addr: addr(9)}, {Name: Everybody, Addr: addr(9)},
			{Name: "e", Addr: netip.IPv6Loopback()}, {Name: "e"},
		} {
			if s.Attach(p) == nil {
				t.Errorf("taken: %+v", p)
			}
		}
		for _, wrong := range [][2]string{{"a", "missing"}, {"missing", "a"}, {"d", "a"}, {"a", "d"}} {
			if s.SetLink(wrong[0], wrong[1], Link{}) == nil {
				t.Errorf("link set: %v", wrong)
			}
			if _, err := s.Reset(wrong[0], wrong[1]); err == nil {
				t.Errorf("reset: %v", wrong)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if s.Attach(Port{Name: "e", Addr: addr(9), Device: newWire()}) == nil {
			t.Error("attached after Close")
		}
	})
}

package netswitch

import (
	"fmt"
	"time"
)

// Link is the faults of packets in one direction between two ports.
type Link struct {
	// Delay, and up to Jitter more, applies to every packet in order.
	Delay, Jitter time.Duration
	// Loss, Duplicate and Reorder are independent probabilities per packet; reordered ones wait 10
	// ms.
	Loss, Duplicate, Reorder float64
	// Rate is in bytes per second with IP headers; 0 is unlimited. Packets beyond a queue of a
	// quarter of a second (at least 64 KiB), or 16 MiB in flight, are lost.
	Rate int64
	// NoTCP loses what belongs to TCP connections, as a firewall does that lets only UDP pass.
	NoTCP bool
}

func (l Link) check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", l.Loss}, {"duplicate", l.Duplicate}, {"reorder", l.Reorder}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("netswitch: %s is %v, want a probability from 0 to 1", p.name, p.v)
		}
	}
	if l.Delay < 0 || l.Jitter < 0 || l.Rate < 0 {
		return fmt.Errorf("netswitch: delay %v, jitter %v, rate %d: none may be negative", l.Delay, l.Jitter, l.Rate)
	}
	return nil
}

const (
	// heldBack is longer than gaps in bursts, shorter than timeouts.
	heldBack   = 10 * time.Millisecond
	rateQueue  = 250 * time.Millisecond
	leastQueue = 64 << 10
	maxFlight  = 16 << 20
)

type line struct {
	link Link
	draw draws

	pending int
	flight  int
	free    time.Time
	last    time.Time // arrival of the last packet that keeps its order
}

type draws interface{ Float64() float64 }

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// set changes the link; later packets do not queue behind earlier ones.
func (n *line) set(l Link) { n.link, n.free, n.last = l, time.Time{}, time.Time{} }

// fate returns when a packet arrives: never, once or twice. It always draws as many numbers, so
// that faults do not influence each other.
func (n *line) fate(now time.Time, size int) (arrivals [2]time.Time, copies int) {
	lose, double, hold, jitter := n.draw.Float64(), n.draw.Float64(), n.draw.Float64(), n.draw.Float64()
	l := &n.link
	if lose < l.Loss || n.flight+size > maxFlight {
		return arrivals, 0
	}
	sent := now
	if l.Rate > 0 {
		begin := later(now, n.free)
		takes := time.Duration(float64(size) / float64(l.Rate) * float64(time.Second))
		queue := max(rateQueue, time.Duration(float64(leastQueue)/float64(l.Rate)*float64(time.Second)))
		if begin.Add(takes).Sub(now) > queue {
			return arrivals, 0
		}
		sent = begin.Add(takes)
		n.free = sent
	}
	at := sent.Add(l.Delay + time.Duration(jitter*float64(l.Jitter)))
	if hold < l.Reorder {
		at = at.Add(heldBack)
	} else {
		at = later(at, n.last)
		n.last = at
	}
	arrivals[0], copies = at, 1
	if double < l.Duplicate {
		arrivals[1], copies = at, 2
	}
	return arrivals, copies
}

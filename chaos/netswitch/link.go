package netswitch

import (
	"fmt"
	"time"
)

// Link describes the faults of packets in one direction between two ports. The zero value has none.
type Link struct {
	// Delay applies to every packet, and up to Jitter more, drawn evenly. Packets keep their order.
	Delay, Jitter time.Duration
	// Loss, Duplicate and Reorder are independent probabilities per packet, without bursts: that it
	// is lost (1: nothing passes), arrives twice, or is held back for 10 ms, so that later packets
	// overtake it.
	Loss, Duplicate, Reorder float64
	// Rate is in bytes per second, IP headers included; 0 is unlimited. Its queue holds a quarter
	// of a second, at least 64 KiB; packets beyond are lost. At most 16 MiB are on their way, with
	// or without a rate.
	Rate int64
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
	// heldBack is the delay of a reordered packet: longer than gaps in bursts, shorter than timeouts.
	heldBack = 10 * time.Millisecond
	// rateQueue bounds the queue of a rate as time, leastQueue in bytes.
	rateQueue  = 250 * time.Millisecond
	leastQueue = 64 << 10
	// maxFlight bounds the bytes on their way on one link, copies included.
	maxFlight = 16 << 20
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

// set changes the link from the next packet on, which does not queue behind earlier ones.
func (n *line) set(l Link) { n.link, n.free, n.last = l, time.Time{}, time.Time{} }

// fate returns when a packet that is sent now arrives: never, once or twice. It always draws the
// same numbers, so that the decisions of one fault do not depend on the others.
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

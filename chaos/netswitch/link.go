package netswitch

import (
	"fmt"
	"time"
)

// Link says what happens to the packets that go one way between two ports. Zero passes them on as they come.
type Link struct {
	// Delay is what a packet takes, Jitter up to how much more, drawn evenly. Packets keep their order.
	Delay, Jitter time.Duration
	// Loss, Duplicate and Reorder are probabilities, each drawn for itself and for each packet, so not in bursts: that a packet is lost (1:
	// nothing passes), comes twice, or is held back for 10 ms, so that others overtake it.
	Loss, Duplicate, Reorder float64
	// Rate is how many bytes pass in a second, headers of IP included; 0 is as many as come. In front of it stands a queue of a quarter of
	// a second, at least 64 KiB; what does not fit in is lost. With or without a rate no more than 16 MiB are under way.
	Rate int64
}

// check returns what is wrong with a link.
func (l Link) check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", l.Loss}, {"duplicate", l.Duplicate}, {"reorder", l.Reorder}} {
		if !(p.v >= 0 && p.v <= 1) { // not a number neither
			return fmt.Errorf("netswitch: %s is %v, want a probability from 0 to 1", p.name, p.v)
		}
	}
	if l.Delay < 0 || l.Jitter < 0 || l.Rate < 0 {
		return fmt.Errorf("netswitch: delay %v, jitter %v, rate %d: none may be negative", l.Delay, l.Jitter, l.Rate)
	}
	return nil
}

const (
	// heldBack is how late a reordered packet comes: long against the gaps within a burst, short against any time-out.
	heldBack = 10 * time.Millisecond
	// rateQueue is how much may wait in front of a rate, as time; leastQueue as bytes: what a receive window may hold at first.
	rateQueue  = 250 * time.Millisecond
	leastQueue = 64 << 10
	// maxFlight bounds what is under way on one link in bytes, copies counted.
	maxFlight = 16 << 20
)

// LinkStats counts the packets of one direction since the switch started.
type LinkStats struct {
	Packets, Bytes int64 // that were to pass
	Lost           int64 // by Loss
	Overflowed     int64 // that found a queue full
	Duplicated     int64
	Reordered      int64
}

// line is one direction between two ports. Guarded by Switch.mu.
type line struct {
	link  Link
	draw  draws
	stats LinkStats

	pending int       // copies under way
	flight  int       // bytes of those
	free    time.Time // when the rate lets the next packet begin
	last    time.Time // when the last one arrives that keeps its order
}

// draws are the random numbers of one packet's fate.
type draws interface{ Float64() float64 }

// set changes the link from the next packet on. Those do not queue behind packets that an earlier, slower link still holds.
func (n *line) set(l Link) { n.link, n.free, n.last = l, time.Time{}, time.Time{} }

// fate says when a packet of size bytes that is sent now arrives: never, once or twice. The same numbers are drawn whatever the link is, so
// that the seed's decision about one fault does not depend on the others.
func (n *line) fate(now time.Time, size int) (arrivals [2]time.Time, copies int) {
	lose, double, hold, jitter := n.draw.Float64(), n.draw.Float64(), n.draw.Float64(), n.draw.Float64()
	n.stats.Packets++
	n.stats.Bytes += int64(size)
	l := &n.link
	if lose < l.Loss {
		n.stats.Lost++
		return arrivals, 0
	}
	if n.flight+size > maxFlight {
		n.stats.Overflowed++
		return arrivals, 0
	}
	sent := now
	if l.Rate > 0 {
		begin := now
		if n.free.After(now) {
			begin = n.free
		}
		takes := time.Duration(float64(size) / float64(l.Rate) * float64(time.Second))
		queue := max(rateQueue, time.Duration(float64(leastQueue)/float64(l.Rate)*float64(time.Second)))
		if begin.Add(takes).Sub(now) > queue {
			n.stats.Overflowed++
			return arrivals, 0
		}
		sent = begin.Add(takes)
		n.free = sent
	}
	at := sent.Add(l.Delay + time.Duration(jitter*float64(l.Jitter)))
	if hold < l.Reorder {
		n.stats.Reordered++
		at = at.Add(heldBack)
	} else {
		if at.Before(n.last) {
			at = n.last
		}
		n.last = at
	}
	arrivals[0], copies = at, 1
	if double < l.Duplicate {
		n.stats.Duplicated++
		arrivals[1], copies = at, 2
	}
	return arrivals, copies
}

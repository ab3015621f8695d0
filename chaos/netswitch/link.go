// Package netswitch joins network namespaces by a switch in user space, whose links lose, delay, duplicate, reorder, slow down and reset what
// passes, each direction for itself and decided by a seed.
//
// It knows IPv4 addresses and TCP flags and nothing of what is carried. Where there is no /dev/net/tun there is no port.
package netswitch

import (
	"fmt"
	"math"
	"time"
)

// Link says what happens to the packets that go one way between two ports. Zero passes them on as they come.
type Link struct {
	// Delay is what a packet takes, Jitter up to how much more, drawn evenly. Packets keep their order.
	Delay, Jitter time.Duration
	// Loss, Duplicate and Reorder are probabilities, each drawn for itself: that a packet is lost (1: nothing passes), comes twice, or
	// is held back until others have overtaken it.
	Loss, Duplicate, Reorder float64
	// Rate is how many bytes pass in a second, headers of IP included; 0 is as many as come. A queue of a quarter of a second stands in front of it, or of
	// 64 KiB, whatever is more; what does not fit in is lost.
	Rate int64
}

// zero says whether a link does nothing to packets.
func (l Link) zero() bool { return l == Link{} }

// check returns what is wrong with a link.
func (l Link) check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", l.Loss}, {"duplicate", l.Duplicate}, {"reorder", l.Reorder}} {
		if !(p.v >= 0 && p.v <= 1) || math.IsNaN(p.v) {
			return fmt.Errorf("netswitch: %s is %v, want a probability from 0 to 1", p.name, p.v)
		}
	}
	if l.Delay < 0 || l.Jitter < 0 || l.Rate < 0 {
		return fmt.Errorf("netswitch: delay %v, jitter %v, rate %d: none may be negative", l.Delay, l.Jitter, l.Rate)
	}
	return nil
}

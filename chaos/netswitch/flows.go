package netswitch

import (
	"net/netip"
	"slices"
	"time"
)

// flowKey names a TCP connection, the same for both directions.
type flowKey struct{ a, b netip.AddrPort }

// flow is what passed of one TCP connection, by side: 0 is flowKey.a, 1 is flowKey.b. Guarded by Switch.mu.
type flow struct {
	end    [2]uint32 // sequence number after the last segment that this side sent
	ack    [2]uint32 // what this side last said it waits for
	seen   time.Time
	closed [2]bool   // this side has sent its end
	doomed time.Time // not zero: reset then, and whatever comes is answered by a reset
}

const (
	// maxFlows bounds how many connections are remembered: more than there are descriptors in a process.
	maxFlows = 1 << 15
	// doomTime is how long a reset connection is answered by resets: longer than it takes either side to send something.
	doomTime = time.Minute
)

// flows are the connections that passed. Guarded by Switch.mu.
type flows map[flowKey]*flow

// keyOf returns the name of a segment's connection and which side sent it.
func keyOf(p packet, s segment) (key flowKey, side int) {
	from, to := s.ports()
	src, dst := netip.AddrPortFrom(p.src(), from), netip.AddrPortFrom(p.dst(), to)
	if src.Compare(dst) < 0 {
		return flowKey{src, dst}, 0
	}
	return flowKey{dst, src}, 1
}

// note takes a segment into account. If its connection was reset it must not pass, and answer, unless nil, goes to its sender.
func (f flows) note(p packet, s segment, now time.Time) (pass bool, answer packet) {
	key, side := keyOf(p, s)
	c := f[key]
	if c == nil {
		if s.flags()&flagRST != 0 {
			return true, nil
		}
		if len(f) >= maxFlows {
			f.forget(now)
		}
		c = &flow{}
		f[key] = c
	}
	c.seen = now
	if !c.doomed.IsZero() {
		switch {
		case s.flags()&(flagSYN|flagACK) == flagSYN, now.Sub(c.doomed) > doomTime: // another connection
			*c = flow{seen: now}
		case s.flags()&flagRST != 0:
			return false, nil
		default:
			// Whatever it says it waits for is what a reset must have to be believed (RFC 5961, section 3.2).
			from, to := key.b, key.a
			if side == 1 {
				from, to = key.a, key.b
			}
			return false, newReset(from, to, s.ack(), s.end())
		}
	}
	switch {
	case s.flags()&flagRST != 0:
		delete(f, key)
		return true, nil
	case s.flags()&flagFIN != 0:
		c.closed[side] = true
	case s.flags()&(flagSYN|flagACK) == flagSYN:
		c.closed = [2]bool{}
	}
	c.end[side] = s.end()
	if s.flags()&flagACK != 0 {
		c.ack[side] = s.ack()
	}
	return true, nil
}

// forget drops connections that have ended, and if too few have, the quarter that was silent longest.
func (f flows) forget(now time.Time) {
	var seen []time.Time
	for key, c := range f {
		if c.closed[0] && c.closed[1] || !c.doomed.IsZero() && now.Sub(c.doomed) > doomTime {
			delete(f, key)
			continue
		}
		seen = append(seen, c.seen)
	}
	if len(f) < maxFlows*3/4 {
		return
	}
	slices.SortFunc(seen, time.Time.Compare)
	oldest := seen[len(seen)/4]
	for key, c := range f {
		if !c.seen.After(oldest) {
			delete(f, key)
		}
	}
}

// doom resets a connection: the packets returned go to the sides named beside them. Both sequence numbers that a side may wait for are
// tried: what it last said, and what was sent to it since. One that is wrong has it say the right one.
func (c *flow) doom(key flowKey, now time.Time) (packets [2][2]packet) {
	c.doomed = now
	packets[0] = [2]packet{newReset(key.b, key.a, c.ack[0], c.end[0]), newReset(key.b, key.a, c.end[1], c.end[0])}
	packets[1] = [2]packet{newReset(key.a, key.b, c.ack[1], c.end[1]), newReset(key.a, key.b, c.end[0], c.end[1])}
	return packets
}

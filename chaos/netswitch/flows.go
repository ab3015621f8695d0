package netswitch

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

type flowKey struct{ a, b netip.AddrPort }

// flow is one TCP connection by side: 0 is flowKey.a, 1 flowKey.b.
type flow struct {
	end    [2]uint32 // sequence number after the last segment of this side
	ack    [2]uint32
	seen   time.Time
	closed [2]bool
	doomed time.Time // not zero: time of the reset, after which each packet is answered by a reset
}

const (
	// maxFlows is more than a process has descriptors.
	maxFlows = 1 << 15
	doomTime = time.Minute
)

type flows map[flowKey]*flow

func keyOf(p packet, s segment) (key flowKey, side int) {
	from, to := s.ports()
	src, dst := netip.AddrPortFrom(p.src(), from), netip.AddrPortFrom(p.dst(), to)
	if src.Compare(dst) < 0 {
		return flowKey{src, dst}, 0
	}
	return flowKey{dst, src}, 1
}

// note records a segment; the answer to one of a reset connection, unless nil, goes to the sender.
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
		case s.flags()&(flagSYN|flagACK) == flagSYN, now.Sub(c.doomed) > doomTime:
			*c = flow{seen: now}
		case s.flags()&flagRST != 0:
			return false, nil
		default:
			// A reset is valid only with the sequence number that the receiver expects (RFC 5961,
			// section 3.2): this segment's acknowledgement.
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

func (f flows) forget(now time.Time) {
	maps.DeleteFunc(f, func(_ flowKey, c *flow) bool {
		return c.closed[0] && c.closed[1] || !c.doomed.IsZero() && now.Sub(c.doomed) > doomTime
	})
	if len(f) >= maxFlows*3/4 {
		left := slices.SortedFunc(maps.Values(f), func(a, b *flow) int { return a.seen.Compare(b.seen) })
		oldest := left[len(left)/4].seen
		maps.DeleteFunc(f, func(_ flowKey, c *flow) bool { return !c.seen.After(oldest) })
	}
}

// doom returns resets with both numbers that a side may expect: its latest acknowledgement, and the
// end of what was sent to it since.
func (c *flow) doom(key flowKey, now time.Time) (packets [2][2]packet) {
	c.doomed = now
	packets[0] = [2]packet{newReset(key.b, key.a, c.ack[0], c.end[0]), newReset(key.b, key.a, c.end[1], c.end[0])}
	packets[1] = [2]packet{newReset(key.a, key.b, c.ack[1], c.end[1]), newReset(key.a, key.b, c.end[0], c.end[1])}
	return packets
}

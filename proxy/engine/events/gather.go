package events

import (
	"net"
	"time"
)

const (
	// rest is how long messages of a busy stream gather until they are read, all streams at once: the process wakes up once for all of
	// them, which costs as much as to apply several batches of 64 blocks.
	rest = 10 * time.Millisecond
	// restless rests in a row without a message end that, and so many rests between two messages do not begin it.
	restless = 2
	// A stream that brings plenty at a time, as ten engines do, rests for longRest: rarer wake-ups halve what it costs, while predictions of
	// other streams would miss what happened meanwhile.
	plenty   = 16 << 10 // bytes
	longRest = 3 * rest
	// gathered wakes the reader before the end of a rest. 1,000 batches/s of 64 blocks bring 114 kB in a long one.
	gathered = 256 << 10 // bytes
)

// gatherer reads what has come at the end of each rest, while much comes. Until gather is set it reads as the connection does.
type gatherer struct {
	net.Conn
	gather bool
	rest   time.Duration // 0: the stream is not busy
	last   time.Time     // when something was read
}

func (g *gatherer) Read(b []byte) (int, error) {
	for rests := range restless {
		if g.rest == 0 {
			break
		}
		_ = g.SetReadDeadline(time.Now().Truncate(g.rest).Add(g.rest))
		n, err := g.Conn.Read(b)
		if late, is := err.(net.Error); !is || !late.Timeout() {
			switch { // what comes before a rest is what the last one left
			case rests == 0:
			case n >= plenty:
				g.rest = longRest
			default:
				g.rest = rest
			}
			return n, err
		}
	}
	if g.rest > 0 {
		g.rest = 0
		_ = g.SetReadDeadline(time.Time{})
		lowWater(g.Conn, 1)
	}
	n, err := g.Conn.Read(b)
	if now := time.Now(); g.gather {
		if now.Sub(g.last) < restless*rest {
			g.rest = rest
			lowWater(g.Conn, gathered)
		}
		g.last = now
	}
	return n, err
}

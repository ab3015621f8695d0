package events

import (
	"errors"
	"net"
	"time"
)

const (
	// rest is how long messages of a busy stream gather until they are read, all streams at once: the process wakes up once for all of
	// them, which costs as much as to apply two batches of 64 blocks.
	rest = 10 * time.Millisecond
	// restless rests in a row without a message end that, and so many rests between two messages do not begin it.
	restless = 2
)

// gatherer reads what has come at the end of each rest, while much comes. Until gather is set it reads as the connection does.
type gatherer struct {
	net.Conn
	gather bool
	busy   bool
	last   time.Time // when something was read
}

func (g *gatherer) Read(b []byte) (int, error) {
	for range restless {
		if !g.busy {
			break
		}
		_ = g.SetReadDeadline(time.Now().Truncate(rest).Add(rest))
		n, err := g.Conn.Read(b)
		if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
			return n, err
		}
	}
	if g.busy {
		g.busy = false
		_ = g.SetReadDeadline(time.Time{})
		lowWater(g.Conn, 1)
	}
	n, err := g.Conn.Read(b)
	if now := time.Now(); g.gather {
		if g.busy = now.Sub(g.last) < restless*rest; g.busy {
			lowWater(g.Conn, readAhead)
		}
		g.last = now
	}
	return n, err
}

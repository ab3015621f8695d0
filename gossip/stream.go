package gossip

import (
	"errors"
	"fmt"
	"net"
	"time"

	"grapevine.example/gossip/wire"
)

// writeTimeout bounds one write: 10 kB/s is too slow for a fleet.
const writeTimeout = 5 * time.Second

var (
	errViolation  = errors.New("protocol violation")
	errUnexpected = errors.New("not expected here")
	errTooMany    = errors.New("more requests than allowed at a time")
)

// readFrames passes a stream's frames to take until it fails, or no frame arrives within silence.
func (x *Exchange) readFrames(c net.Conn, buffer int, silence time.Duration, take func(k wire.Kind, body []byte, size int, now time.Time) error) error {
	r := wire.NewReader(c, buffer)
	var limit time.Time
	var skipped uint64
	for {
		// Setting a deadline costs more than reading a frame.
		if now := time.Now(); limit.Sub(now) < silence*9/10 {
			limit = now.Add(silence)
			if err := c.SetReadDeadline(limit); err != nil {
				return err
			}
		}
		kind, body, size, err := r.Next()
		if errors.Is(err, wire.ErrMalformed) {
			return fmt.Errorf("%w: %w", errViolation, err)
		}
		if err != nil {
			return err
		}
		x.counting.Lock()
		x.received[kind] += uint64(size)
		x.stats.SkippedFrames += r.Skipped() - skipped
		x.counting.Unlock()
		skipped = r.Skipped()
		if err := take(kind, body, size, time.Now()); err != nil {
			return fmt.Errorf("%w: %v: %w", errViolation, kind, err)
		}
	}
}

// writeFrames also counts what it wrote and debits the budget.
func (x *Exchange) writeFrames(c net.Conn, now time.Time, frames []byte) (n int, err error) {
	if err := c.SetWriteDeadline(now.Add(writeTimeout)); err != nil {
		return 0, err
	}
	n, err = c.Write(frames)
	x.budget.spend(now, n)
	x.counting.Lock()
	defer x.counting.Unlock()
	x.stats.Writes++
	for len(frames) > 0 {
		kind, size := wire.Split(frames)
		if kind < wire.Kinds {
			x.sent[kind] += uint64(size)
		}
		frames = frames[size:]
	}
	return n, err
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

package events

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grapevine.example/chaos/bubble"
)

// slowSocket keeps what arrives, and wakes a reader that has a deadline only then.
type slowSocket struct {
	net.Conn
	mu       sync.Mutex
	data     []byte
	deadline time.Time
	reads    int // that brought something
	tries    int
	arrived  chan struct{}
}

func (s *slowSocket) arrive() { s.bring(1) }

func (s *slowSocket) bring(n int) {
	s.mu.Lock()
	s.data = append(s.data, make([]byte, n)...)
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *slowSocket) SetReadDeadline(t time.Time) error {
	s.deadline = t
	return nil
}

func (s *slowSocket) taken(b []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(b, s.data)
	s.data = s.data[n:]
	if n > 0 {
		s.reads++
	}
	return n
}

func (s *slowSocket) Read(b []byte) (int, error) {
	s.tries++
	n := s.taken(b)
	for n == 0 {
		if !s.deadline.IsZero() {
			time.Sleep(time.Until(s.deadline))
			return 0, os.ErrDeadlineExceeded
		}
		if _, open := <-s.arrived; !open {
			return 0, io.EOF
		}
		n = s.taken(b)
	}
	return n, nil
}

func (s *slowSocket) readSoFar() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func TestBusyStreamIsReadOnceARest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowSocket{arrived: make(chan struct{}, 1)}
		var mu sync.Mutex
		var late time.Duration // the latest of a message that came
		var begun time.Time
		got := 0
		go func() {
			g := &gatherer{Conn: s, gather: true}
			for b := make([]byte, 1<<10); ; {
				n, err := g.Read(b)
				if err != nil {
					return
				}
				mu.Lock()
				got += n
				late = time.Since(begun)
				mu.Unlock()
			}
		}()
		send := func(n int, every time.Duration) (reads int, last time.Duration) {
			before := s.reads
			for range n {
				time.Sleep(every)
				mu.Lock()
				begun = time.Now()
				mu.Unlock()
				s.arrive()
			}
			time.Sleep(rest)
			synctest.Wait()
			return s.reads - before, late
		}
		// The first ones come alone, and the last rest is not full.
		if reads, _ := send(100, rest/10); reads > 100/10+restless+1 {
			t.Errorf("%d reads for 100 messages in 10 rests", reads)
		}
		time.Sleep((restless + 1) * rest)
		synctest.Wait()
		quiet := s.tries
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.tries != quiet {
			t.Errorf("%d reads of a silent stream", s.tries-quiet)
		}
		if reads, last := send(10, (restless+1)*rest); reads != 10 || last != 0 {
			t.Errorf("%d reads for 10 messages that come slowly, the last one %v late", reads, last)
		}
		if got != 110 {
			t.Errorf("%d of 110 messages", got)
		}
		close(s.arrived)
	})
}

// A stream that brings plenty is read once in a long rest, and once in a rest again when it brings less.
func TestPlentyIsReadOnceALongRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowSocket{arrived: make(chan struct{}, 1)}
		go func() {
			g := &gatherer{Conn: s, gather: true}
			for b := make([]byte, readAhead); ; {
				if _, err := g.Read(b); err != nil {
					return
				}
			}
		}()
		reads := func(bytes int) int { // in 12 long rests, without the first two
			before := 0
			for i := range 12 * int(longRest/time.Millisecond) {
				if i == 2*int(longRest/time.Millisecond) {
					before = s.readSoFar()
				}
				time.Sleep(time.Millisecond)
				s.bring(bytes)
			}
			return s.readSoFar() - before
		}
		long, short := int(10*longRest/longRest), int(10*longRest/rest)
		for _, c := range []struct{ bytes, want int }{{plenty / 8, long}, {100, short}, {plenty / 8, long}} {
			if n := reads(c.bytes); n < c.want-1 || n > c.want+1 {
				t.Errorf("%d reads of a stream that brings %d bytes a millisecond, want %d", n, c.bytes, c.want)
			}
		}
		time.Sleep((restless + 1) * longRest) // until it waits for a message
		close(s.arrived)
	})
}

package events

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

func (s *slowSocket) arrive() {
	s.mu.Lock()
	s.data = append(s.data, 'x')
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

func TestBusyStreamIsReadOnceARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

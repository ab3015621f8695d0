package fleet

import (
	"errors"
	"runtime"
	"sync"
)

// thread is an operating-system thread that runs functions: on Linux a child gets its parent-death
// signal when the thread that forked it ends, and inherits its network namespace. Safe for
// concurrent use.
type thread struct {
	calls chan func()
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once
}

var errThreadClosed = errors.New("fleet: closed")

func newThread(setup func() error) (*thread, error) {
	t := &thread{calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error, 1)
	go t.run(setup, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

// run never unlocks its thread, so that the thread and its namespace end with the goroutine.
func (t *thread) run(setup func() error, ready chan<- error) {
	runtime.LockOSThread()
	if onMainThread() {
		// The first thread represents the process in /proc and never ends; another does the work.
		go t.run(setup, ready)
		<-t.done
		runtime.UnlockOSThread()
		return
	}
	defer close(t.done)
	if setup != nil {
		if err := setup(); err != nil {
			ready <- err
			return
		}
	}
	ready <- nil
	for {
		select {
		case f := <-t.calls:
			f()
		case <-t.quit:
			return
		}
	}
}

func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.calls <- func() { result <- f() }:
		return <-result
	case <-t.done:
		return errThreadClosed
	}
}

func (t *thread) close() {
	t.once.Do(func() { close(t.quit) })
	<-t.done
}

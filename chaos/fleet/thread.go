package fleet

import (
	"errors"
	"runtime"
	"sync"
)

// thread is one operating-system thread that runs functions for others. Two things in Linux belong to a thread and not to a process: a child
// asks for a signal at the death of the thread that forked it (so whoever starts processes must do it from a thread that outlives
// them), and a thread may live in a network namespace of its own, which what it forks inherits.
//
// Safe for concurrent use.
type thread struct {
	calls chan func()
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// errThreadClosed is what do returns after close.
var errThreadClosed = errors.New("fleet: closed")

// newThread starts a thread and runs setup on it first. If that fails there is no thread.
func newThread(setup func() error) (*thread, error) {
	t := &thread{calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error, 1)
	go t.run(setup, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

// run never unlocks its thread: the runtime ends it with the goroutine, and with it the namespace that it may have.
func (t *thread) run(setup func() error, ready chan<- error) {
	runtime.LockOSThread()
	if onMainThread() {
		// The first thread stands for the whole process in /proc and never ends. It is kept busy here until another one is done.
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

// do runs f on the thread and returns its error. It waits for calls before it.
func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.calls <- func() { result <- f() }:
		return <-result
	case <-t.done:
		return errThreadClosed
	}
}

// close ends the thread after the call that runs. What it started gets its parting signal now. Idempotent.
func (t *thread) close() {
	t.once.Do(func() { close(t.quit) })
	<-t.done
}

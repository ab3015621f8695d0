package handover

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Successor is a process that this one started to be replaced by it. Use it in the order of its
// methods. Not safe for concurrent use, but for Take beside Yours and Give.
type Successor struct {
	conn
	PID     int
	process process
}

// Built returns the version of the new program once it has accepted its configuration.
func (s *Successor) Built(ctx context.Context) (version string, err error) {
	m, err := s.receive(ctx, built)
	return m.Text, s.explain(err)
}

// Give sends a page: of knowledge, or after Yours of usage.
func (s *Successor) Give(ctx context.Context, p *Page) error {
	return s.explain(s.send(ctx, message{Step: page, Page: p}))
}

func (s *Successor) EndOfPages(ctx context.Context) error {
	return s.explain(s.send(ctx, message{Step: pagesEnd}))
}

// Released lets the new process start, and returns when it serves.
func (s *Successor) Released(ctx context.Context, usage *Page) error {
	if err := s.send(ctx, message{Step: released, Page: usage}); err != nil {
		return s.explain(err)
	}
	_, err := s.receive(ctx, serving)
	return s.explain(err)
}

// Take yields the new process's pages of usage, after Released, until that ends or ctx ends.
func (s *Successor) Take(ctx context.Context, take func(*Page)) { s.take(ctx, take) }

// Yours ends the hand-over. The connection stays open until this process exits, which shows its end
// to the successor.
func (s *Successor) Yours(ctx context.Context) error {
	return s.explain(s.send(ctx, message{Step: yours}))
}

// killWithin is ample for the kernel to end a process.
const killWithin = 5 * time.Second

// Kill ends the successor, and returns when it no longer holds any file.
func (s *Successor) Kill() error {
	return errors.Join(s.Close(), s.process.kill(killWithin))
}

func (s *Successor) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("process %d: %w", s.PID, err)
}

package node

import (
	"context"
	"errors"
	"fmt"
)

// cleanups is a last-in-first-out stack of named steps that undo what a start
// did. A start that fails half-way unwinds the same stack that a stop unwinds,
// so there is one order of tearing down and it is the reverse of building up.
// Not safe for concurrent use: the owner's lock guards it.
type cleanups struct {
	steps []cleanup
}

type cleanup struct {
	name string
	run  func(context.Context) error
}

// push registers a step. It is called as soon as there is something to undo,
// before the next thing that may fail.
func (c *cleanups) push(name string, run func(context.Context) error) {
	c.steps = append(c.steps, cleanup{name, run})
}

// unwind runs every step, newest first, past failures, and empties the stack.
// Every step gets the same ctx and is expected to be bounded by it. The errors
// come back joined, each with the name of its step.
func (c *cleanups) unwind(ctx context.Context) error {
	var errs []error
	for len(c.steps) > 0 {
		last := len(c.steps) - 1
		s := c.steps[last]
		c.steps = c.steps[:last]
		if err := s.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}

package node

import (
	"context"
	"errors"
	"fmt"
)

// cleanups is a stack of named steps that undo a start, whether it failed half-way or the node
// stops. The owner's lock guards it.
type cleanups struct {
	steps []cleanup
}

type cleanup struct {
	name string
	run  func(context.Context) error
}

// push registers a step; call it before the next thing that may fail.
func (c *cleanups) push(name string, run func(context.Context) error) {
	c.steps = append(c.steps, cleanup{name, run})
}

// unwind runs every step, newest first, despite failures, and empties the stack. The steps must
// respect ctx. It joins their errors, each with its step's name.
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

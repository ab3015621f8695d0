package node

import (
	"context"
	"errors"
	"fmt"
)

// cleanups is a stack of steps that undo a start. The owner's lock guards it.
type cleanups struct {
	steps []cleanup
}

type cleanup struct {
	name string
	run  func(context.Context) error
}

func (c *cleanups) push(name string, run func(context.Context) error) {
	c.steps = append(c.steps, cleanup{name, run})
}

// unwind runs all steps, newest first, and joins their errors. Steps must respect ctx.
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

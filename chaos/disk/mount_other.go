//go:build !linux

package disk

import (
	"errors"
	"fmt"
)

// mounted exists on Linux only.
type mounted struct{}

// Available is for Linux only.
func Available() error { return fmt.Errorf("disk: no file systems: %w", errors.ErrUnsupported) }

// Mount is for Linux only.
func Mount(string, func(func() error) error) (*Disk, error) { return nil, Available() }

// Close is for Linux only.
func (*Disk) Close() error { return nil }

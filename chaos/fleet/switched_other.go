//go:build !linux

package fleet

import (
	"errors"

	"grapevine/chaos/netswitch"
)

func linkable() error { return netswitch.Available() }

func newWires(uint64, []string) (wires, error) { return nil, errors.ErrUnsupported }

//go:build !linux

package fleet

import "errors"

func newWires(uint64, []string) (wires, error) { return nil, errors.ErrUnsupported }

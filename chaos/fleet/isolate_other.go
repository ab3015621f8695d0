//go:build !linux

package fleet

import (
	"errors"
	"os/exec"
)

// Isolate is for Linux only.
func Isolate(*exec.Cmd) error { return errors.ErrUnsupported }

// Isolated is false where there are no network namespaces.
func Isolated() bool { return false }

func raiseLoopback() error { return nil }

// network exists on Linux only.
type network struct{}

func newNetwork(nodes, members int) (*network, error) { return nil, errors.ErrUnsupported }

func (*network) attach(int) (*thread, error) { return nil, errors.ErrUnsupported }
func (*network) cut([]int, []int) error      { return errors.ErrUnsupported }
func (*network) heal() error                 { return errors.ErrUnsupported }
func (*network) of(int, service) string      { return "" }
func (*network) Close() error                { return nil }

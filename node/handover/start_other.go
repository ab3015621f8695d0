//go:build !linux

package handover

import (
	"context"
	"errors"
	"net"
	"time"
)

type process struct{}

// Start works on Linux only.
func Start(context.Context, string, []string, []string, Hello, []net.Listener) (*Successor, error) {
	return nil, errors.New("a router replaces its process on Linux only: restart it")
}

func (process) kill(time.Duration) error { return nil }

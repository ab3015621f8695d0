//go:build !linux

package netswitch

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Available is for Linux only.
func Available() error { return fmt.Errorf("netswitch: no ports: %w", errors.ErrUnsupported) }

// OpenTUN is for Linux only.
func OpenTUN(string, netip.Prefix) (*os.File, error) { return nil, Available() }

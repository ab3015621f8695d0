//go:build !linux

package netswitch

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// Available reports that ports need Linux.
func Available() error { return fmt.Errorf("netswitch: no ports: %w", errors.ErrUnsupported) }

// OpenTUN needs Linux.
func OpenTUN(string, netip.Prefix) (*os.File, error) { return nil, Available() }

//go:build !linux

package netswitch

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
)

func Available() error { return fmt.Errorf("netswitch: no ports: %w", errors.ErrUnsupported) }

func OpenTUN(string, netip.Prefix) (*os.File, error) { return nil, Available() }

package member

import (
	"fmt"
	"os"

	"grapevine.example/gossip/discovery"
)

// CheckSecret refuses a file that everyone may use or its group may change.
func CheckSecret(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o007 != 0:
		return fmt.Errorf("everyone may use %s (mode %04o): chmod 600 it", f.Name(), mode)
	case mode&0o020 != 0:
		return fmt.Errorf("its group may change %s (mode %04o): chmod 600 or 640 it", f.Name(), mode)
	}
	return nil
}

// ReadSecret reads at most limit bytes of a file that CheckSecret accepts.
func ReadSecret(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := CheckSecret(f); err != nil {
		return nil, err
	}
	return discovery.ReadAll(f, limit)
}

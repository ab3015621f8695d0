package fleet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

var ErrNoRouter = errors.New("no router to start")

const routerName = "grapevine"

// FindRouter returns the absolute path of given, else of grapevine in this program's directory,
// else in PATH.
func FindRouter(given string) (string, error) {
	if given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrNoRouter, err)
		}
		return filepath.Abs(path)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoRouter, err)
	}
	dir := filepath.Dir(self)
	if path, err := exec.LookPath(filepath.Join(dir, routerName)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(routerName)
	if err != nil {
		return "", fmt.Errorf("%w: there is no %s in %s nor in PATH: build it (make build) or name it (--router)", ErrNoRouter, routerName, dir)
	}
	return filepath.Abs(path)
}

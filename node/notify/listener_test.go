package notify

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestNoListenerPassed(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, tc := range map[string]struct{ pid, n, err string }{
		"none":                {"", "", ""},
		"of a parent":         {"1", "1", ""},
		"without a process":   {"", "1", ""},
		"two":                 {self, "2", "one ListenStream"},
		"none, for the asker": {self, "0", "pass one socket"},
	} {
		ln, err := Listener(func(key string) string { return map[string]string{"LISTEN_PID": tc.pid, "LISTEN_FDS": tc.n}[key] })
		if ln != nil || tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v, %v", name, ln, err)
		}
	}
}

package scenario

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine is left; net/http's closing connections end late.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

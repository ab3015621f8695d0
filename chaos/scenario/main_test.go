package scenario

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain holds the package to leaving no goroutine behind. net/http holds a connection that it closes for half a second, for the client to
// take the last bytes.
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

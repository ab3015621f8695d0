package deploy_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A newcomer has a bare Debian without a network, the tarball of a release and the README's commands, which install nothing else:
// the demo runs, two engines answer through the router, and its page opens, in under five minutes.
func TestNewcomer(t *testing.T) {
	m := boot(t, "newcomer", "", filepath.Join(packages(t), "old")+":/download")
	m.run("cp /download/*.tar.gz .")
	var script strings.Builder
	for command := range strings.Lines(recipe(t, "In five minutes")) {
		if strings.HasPrefix(command, "curl") { // typed later than the router takes to start
			script.WriteString("until curl -sf -o /dev/null localhost:8080/readyz; do sleep 0.1; done\n")
		}
		script.WriteString(command)
	}
	began := time.Now()
	// What stays in the background keeps the file open, not the pipe of this test.
	out, err := m.try("( set -ex\n" + script.String() + " ) >log 2>&1 || { cat log; exit 1; }\ncat log")
	took := time.Since(began)
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hit rate of follow-up turns", `"choices"`, "<title>", "emulated"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if status := m.run("grapevine-1.0.0-linux-amd64/grapevine backends"); strings.Count(status, "active") != 2 {
		t.Errorf("%s", status)
	}
	t.Logf("done after %.0f s", took.Seconds())
	if took > 5*time.Minute {
		t.Errorf("it took %v", took)
	}
}

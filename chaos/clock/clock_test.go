package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestStep: a program that is built so sees its wall clock step forth and back at once, and its monotonic time go on; without the file it
// is like any other.
func TestStep(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("clocks are stepped on Linux only")
	}
	dir := t.TempDir()
	program, file := filepath.Join(dir, "teller"), filepath.Join(dir, "clock")
	if err := build(program, "", "./testdata/teller"); err != nil {
		t.Fatal(err)
	}
	step := func(d time.Duration) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(d)), 0)
		}
		if err == nil {
			err = f.Truncate(16)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	step(0)
	run := func(env ...string) (ask func() (wall time.Time, mono time.Duration)) {
		t.Helper()
		cmd := exec.Command(program) // ended by its input, not by the test's context
		cmd.Env = append(os.Environ(), env...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		lines := bufio.NewReader(out)
		return func() (time.Time, time.Duration) {
			t.Helper()
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var ns, since, sub int64
			if _, err := fmt.Sscan(line, &ns, &since, &sub); err != nil {
				t.Fatal(err)
			}
			if sub < since || sub > since+int64(time.Minute) {
				t.Errorf("Since says %v, Sub %v", time.Duration(since), time.Duration(sub))
			}
			return time.Unix(0, ns), time.Duration(since)
		}
	}
	const slack = 30 * time.Second // for a machine that is busy
	near := func(wall time.Time, ahead time.Duration) bool {
		d := time.Until(wall) - ahead
		return d < slack && d > -slack
	}
	ask := run("CHAOS_CLOCK_FILE=" + file)
	_, last := ask()
	for _, d := range []time.Duration{0, time.Hour, -time.Hour, 90*time.Minute + 999_999_999, -90*time.Minute - 999_999_999, 0} {
		step(d)
		wall, mono := ask()
		if !near(wall, d) {
			t.Errorf("stepped by %v, it shows %v, now is %v", d, wall, time.Now())
		}
		if mono < last || mono > last+slack {
			t.Errorf("stepped by %v, monotonic time went from %v to %v", d, last, mono)
		}
		last = mono
	}
	words, err := os.ReadFile(file)
	if err != nil || binary.LittleEndian.Uint64(words[8:]) != 1 {
		t.Errorf("it does not say that it looks: %v, %v", words, err)
	}
	step(time.Hour)
	if wall, _ := run("CHAOS_CLOCK_FILE=")(); !near(wall, 0) {
		t.Errorf("without the file it shows %v", wall)
	}
}

// TestAnotherGo: a version of Go that this was not made for is refused.
func TestAnotherGo(t *testing.T) {
	for _, text := range []string{"", "func Now() Time {\n\treturn now()\n}\n", reads + reads} {
		if _, err := change(text); err == nil {
			t.Errorf("taken: %q", text)
		}
	}
	if got, err := change("a\n" + reads + "b\n"); err != nil || !strings.Contains(got, "a\n"+steps+"b\n") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSow: what is planted is laid over the module's own files, each from a text of its own.
func TestSow(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	replace, texts := make(map[string]string), make(map[string][]byte)
	if err := sow("../..", "overlay", replace, texts); err != nil {
		t.Fatal(err)
	}
	if len(replace) == 0 || len(replace) != len(texts) {
		t.Errorf("%d files are replaced by %d", len(replace), len(texts))
	}
	for file, by := range replace {
		if rest, ok := strings.CutPrefix(file, root+string(filepath.Separator)); !ok || filepath.Dir(by) != "overlay" || len(texts[filepath.Base(by)]) == 0 {
			t.Errorf("%s is replaced by %s (below the root: %q)", file, by, rest)
		}
	}
	if err := sow(t.TempDir(), "overlay", replace, texts); err == nil {
		t.Error("a directory without the module is planted in")
	}
}

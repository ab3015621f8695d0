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

	"grapevine.example/chaos/overlay"
)

type teller struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Reader
}

func tellers(t *testing.T) (start func(control string) teller, control string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("programs are instrumented on Linux only")
	}
	dir := t.TempDir()
	program, control := filepath.Join(dir, "teller"), filepath.Join(dir, "control")
	if err := build(program, "", "./testdata/teller"); err != nil {
		t.Fatal(err)
	}
	return func(control string) teller {
		t.Helper()
		cmd := exec.Command(program, filepath.Join(dir, "written"))
		cmd.Env = append(os.Environ(), "CHAOS_CONTROL_FILE="+control)
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
		return teller{t, in, bufio.NewReader(out)}
	}, control
}

func (x teller) ask() {
	x.t.Helper()
	if _, err := io.WriteString(x.in, "\n"); err != nil {
		x.t.Fatal(err)
	}
}

func (x teller) answer() (wall time.Time, mono time.Duration, written string) {
	x.t.Helper()
	line, err := x.lines.ReadString('\n')
	if err != nil {
		x.t.Fatal(err)
	}
	var ns, since, sub int64
	if _, err := fmt.Sscan(line, &ns, &since, &sub, &written); err != nil {
		x.t.Fatal(err)
	}
	if sub < since || sub > since+int64(time.Minute) {
		x.t.Errorf("Since says %v, Sub %v", time.Duration(since), time.Duration(sub))
	}
	return time.Unix(0, ns), time.Duration(since), written
}

func set(t *testing.T, control string, word int, v int64) {
	t.Helper()
	f, err := os.OpenFile(control, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(v)), int64(8*word))
	}
	if err == nil {
		err = f.Truncate(24)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestStep(t *testing.T) {
	start, control := tellers(t)
	set(t, control, 0, 0)
	const slack = 30 * time.Second
	near := func(wall time.Time, ahead time.Duration) bool {
		d := time.Until(wall) - ahead
		return d < slack && d > -slack
	}
	x := start(control)
	x.ask()
	_, last, _ := x.answer()
	for _, d := range []time.Duration{0, time.Hour, -time.Hour, 90*time.Minute + 999_999_999, -90*time.Minute - 999_999_999, 0} {
		set(t, control, 0, int64(d))
		x.ask()
		wall, mono, _ := x.answer()
		if !near(wall, d) {
			t.Errorf("stepped by %v, it shows %v, now is %v", d, wall, time.Now())
		}
		if mono < last || mono > last+slack {
			t.Errorf("stepped by %v, monotonic time went from %v to %v", d, last, mono)
		}
		last = mono
	}
	words, err := os.ReadFile(control)
	if err != nil || binary.LittleEndian.Uint64(words[8:]) != 1 {
		t.Errorf("it does not say that it looks: %v, %v", words, err)
	}
	set(t, control, 0, int64(time.Hour))
	plain := start("")
	plain.ask()
	if wall, _, _ := plain.answer(); !near(wall, 0) {
		t.Errorf("without the file it shows %v", wall)
	}
}

func TestDisk(t *testing.T) {
	start, control := tellers(t)
	set(t, control, 2, 0)
	x := start(control)
	written := func() string {
		t.Helper()
		x.ask()
		_, _, written := x.answer()
		return written
	}
	if got := written(); got != "written" {
		t.Errorf("to begin with: %s", got)
	}
	set(t, control, 2, 1)
	if got := written(); !strings.HasSuffix(got, "no-space-left-on-device") {
		t.Errorf("full: %s", got)
	}
	const by = 50 * time.Millisecond
	set(t, control, 2, int64(by))
	began := time.Now()
	if got := written(); got != "written" || time.Since(began) < 2*by {
		t.Errorf("slow: %s in %v", got, time.Since(began))
	}
	set(t, control, 2, 2)
	x.ask()
	answered := make(chan time.Time, 1)
	go func() {
		_, _, written := x.answer()
		if written != "written" {
			t.Errorf("when it works again: %s", written)
		}
		answered <- time.Now()
	}()
	select {
	case <-answered:
		t.Error("written to a disk that hangs")
	case <-time.After(300 * time.Millisecond):
	}
	healed := time.Now()
	set(t, control, 2, 0)
	if at := <-answered; at.Before(healed) {
		t.Errorf("written %v before the disk worked again", healed.Sub(at))
	}
}

func TestAnotherGo(t *testing.T) {
	for _, e := range edits {
		for _, text := range []string{"", "func other() {\n", e.begins + e.begins} {
			if err := e.in(overlay.Files{"f": text}, "f"); err == nil {
				t.Errorf("taken: %q", text)
			}
		}
		files := overlay.Files{"f": "a\n" + e.begins + "b\n"}
		if err := e.in(files, "f"); err != nil || files["f"] != "a\n"+e.begins+e.statement+"b\n" {
			t.Errorf("%q, %v", files, err)
		}
	}
}

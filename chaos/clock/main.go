// Command clock builds a program whose wall clock can be stepped while it runs, for itself alone: the program's packages, its
// libraries and the standard library see the stepped time wherever they ask for it (timestamps, certificates, logs), while
// monotonic time, and with it timers and measured durations, goes on. Linux cannot do that to a process: its time namespaces leave the wall clock
// alone.
//
//	go run ./chaos/clock -o bin/grapevine-chaos -plant . ./cmd/grapevine
//
// It lays a changed time.Now over the standard library (go build -overlay). Nothing of the program's own code is changed, so what is tried
// is what is shipped; but for the defects of chaos/plant, if they are asked for, none of which is active unless GRAPEVINE_PLANT names it.
// The step is the first of two little-endian int64 in the file that CHAOS_CLOCK_FILE names, in nanoseconds; the
// program writes 1 into the second one when it starts to look.
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"grapevine/chaos/plant"
)

// step is a file that is added to package time.
//
//go:embed step.txt
var step []byte

// The one place in package time that reads the wall clock, and what takes its place.
const (
	reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	steps = reads + "\tsec, nsec = stepped(sec, nsec)\n"
)

func main() {
	out := flag.String("o", "", "the program to write")
	planted := flag.String("plant", "", "root of the module to plant the defects of chaos/plant in; none if empty")
	flag.Parse()
	if *out == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(*out, *planted, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		os.Exit(1)
	}
}

// build compiles a package over the changed time and, if there is a root, with defects planted in the module there.
func build(out, planted, pkg string) (err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	now := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(now)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", now, err)
	}
	dir, err := os.MkdirTemp("", "grapevine-clock-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	replace := map[string]string{now: filepath.Join(dir, "time.go"), filepath.Join(filepath.Dir(now), "chaos_step.go"): filepath.Join(dir, "step.go")}
	texts := map[string][]byte{"time.go": []byte(changed), "step.go": step}
	if planted != "" {
		if err := sow(planted, dir, replace, texts); err != nil {
			return err
		}
	}
	if texts["overlay.json"], err = json.Marshal(map[string]any{"Replace": replace}); err != nil {
		return err
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	cmd := exec.Command("go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

// sow adds the defects that are planted in the module at root to what is replaced, by files in dir, and to the texts of these.
func sow(root, dir string, replace map[string]string, texts map[string][]byte) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	files, err := plant.Overlay(root)
	if err != nil {
		return err
	}
	for file, text := range files {
		name := "planted-" + strings.ReplaceAll(file, "/", "-")
		replace[filepath.Join(root, filepath.FromSlash(file))] = filepath.Join(dir, name)
		texts[name] = []byte(text)
	}
	return nil
}

// change returns the text of time.go with its clock made to step.
func change(text string) (string, error) {
	if n := strings.Count(text, reads); n != 1 {
		return "", fmt.Errorf("this version of Go reads its clock in another way (%d places found, want 1): adapt chaos/clock", n)
	}
	return strings.Replace(text, reads, steps, 1), nil
}

// Command instrument builds a program whose wall clock can be stepped and whose disk can be full,
// slow or hanging.
//
//	go run ./chaos/instrument -o bin/grapevine-chaos -plant . ./cmd/grapevine
//
// It overlays files of the standard library (go build -overlay). time.Now returns the stepped time;
// monotonic time, timers and durations are unaffected. Writes at an offset, truncations and syncs
// of files fail, wait or hang; sockets and logs work. The defects of chaos/plant are inactive
// unless GRAPEVINE_PLANT names one.
//
// The file named by CHAOS_CONTROL_FILE controls a running program by three little-endian int64: the
// step of the wall clock in nanoseconds; 1, written by the program when it reads the file; and the
// disk: 0 works, 1 is full, 2 hangs, above: nanoseconds of delay.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"grapevine.example/chaos/overlay"
	"grapevine.example/chaos/plant"
)

// Files added to packages time and syscall.
var (
	//go:embed clock.txt
	clock []byte
	//go:embed disk.txt
	disk []byte
)

var added = map[string][]byte{"time": clock, "syscall": disk}

type edit struct {
	file      string
	begins    string
	statement string
}

const refuse = "\tif err = chaosDisk(%v); err != nil {\n\t\treturn\n\t}\n"

var edits = []edit{
	{"time/time.go", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "\tsec, nsec = stepped(sec, nsec)\n"},
	{"syscall/syscall_unix.go", "func Pwrite(fd int, p []byte, offset int64) (n int, err error) {\n", fmt.Sprintf(refuse, true)},
	{"syscall/zsyscall_linux_GOARCH.go", "func Ftruncate(fd int, length int64) (err error) {\n", fmt.Sprintf(refuse, true)},
	{"syscall/zsyscall_linux_GOARCH.go", "func Fsync(fd int) (err error) {\n", fmt.Sprintf(refuse, false)},
	{"syscall/zsyscall_linux_GOARCH.go", "func Fdatasync(fd int) (err error) {\n", fmt.Sprintf(refuse, false)},
}

func main() {
	out := flag.String("o", "", "the program to write")
	planted := flag.String("plant", "", "root of the module to plant the defects of chaos/plant in; none if empty")
	flag.Parse()
	if *out == "" || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(*out, *planted, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "instrument:", err)
		os.Exit(1)
	}
}

func build(out, planted, pkg string) (err error) {
	dir, err := os.MkdirTemp("", "grapevine-instrument-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := make(overlay.Files)
	if err := library(files); err != nil {
		return err
	}
	if planted != "" {
		defects, err := plant.Overlay(planted)
		if err != nil {
			return err
		}
		maps.Copy(files, defects)
	}
	list, err := files.Write(dir)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-overlay", list, "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

func library(files overlay.Files) error {
	env, err := exec.Command("go", "env", "GOROOT", "GOARCH").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	root, arch, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	src := filepath.Join(root, "src")
	for pkg, text := range added {
		files[filepath.Join(src, pkg, "chaos_added.go")] = string(text)
	}
	for _, e := range edits {
		if err := e.in(files, filepath.Join(src, strings.ReplaceAll(e.file, "GOARCH", arch))); err != nil {
			return err
		}
	}
	return nil
}

func (e edit) in(files overlay.Files, file string) error {
	if err := files.Edit(file, e.begins, e.begins+e.statement); err != nil {
		return fmt.Errorf("chaos/instrument does not fit this version of Go: %w", err)
	}
	return nil
}

package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"grapevine/chaos/disk"
)

// patience is for what must happen.
const patience = 20 * time.Second

// lockedThread runs functions on a thread of its own, which ends with the test.
func lockedThread(t *testing.T) func(func() error) error {
	t.Helper()
	calls, done := make(chan func()), make(chan struct{})
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // it must not end
			go run()
			<-done
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		for f := range calls {
			f()
		}
	}
	go run()
	t.Cleanup(func() {
		close(calls)
		<-done
	})
	return func(f func() error) error {
		result := make(chan error, 1)
		calls <- func() { result <- f() }
		return <-result
	}
}

// mount returns a directory with a Disk over it, and a way to run what sees it.
func mount(t *testing.T) (d *disk.Disk, dir string, on func(func() error) error) {
	t.Helper()
	if err := disk.Available(); err != nil {
		t.Skip(err)
	}
	dir, on = t.TempDir(), lockedThread(t)
	d, err := disk.Mount(dir, on)
	if errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, dir, on
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestThrough: what is written through the Disk is what is there, and only the thread looks through it.
func TestThrough(t *testing.T) {
	_, dir, on := mount(t)
	name := filepath.Join(dir, "sub", "file")
	must(t, on(func() error {
		if err := os.Mkdir(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte("through"), 0o600); err != nil {
			return err
		}
		return os.Rename(name, name+".new")
	}))
	text, err := os.ReadFile(name + ".new")
	if err != nil || string(text) != "through" {
		t.Errorf("below: %q, %v", text, err)
	}
	must(t, os.WriteFile(name, []byte("below"), 0o600))
	must(t, on(func() error {
		text, err = os.ReadFile(name)
		return err
	}))
	if string(text) != "below" {
		t.Errorf("through: %q", text)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("the process has the mount, %v", err)
	}
	must(t, on(func() (err error) {
		mounts, err = os.ReadFile("/proc/thread-self/mountinfo")
		return err
	}))
	if !strings.Contains(string(mounts), dir) {
		t.Error("the thread does not have the mount")
	}
}

// TestFull: what grows fails, what is there can be read, written over, and removed; then it goes on.
func TestFull(t *testing.T) {
	d, dir, on := mount(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	content := bytes.Repeat([]byte("x"), 64<<10)
	must(t, on(func() error {
		return errors.Join(os.WriteFile(a, content, 0o600), os.Mkdir(filepath.Join(dir, "there"), 0o700))
	}))
	d.Fill()
	write := func(name string, off int64, data []byte) error {
		return on(func() error {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(data, off)
			return errors.Join(err, f.Sync(), f.Close())
		})
	}
	must(t, write(a, 100, []byte("over")))
	for what, err := range map[string]error{
		"append":        write(a, int64(len(content)), []byte("more")),
		"half beyond":   write(a, int64(len(content))-2, []byte("more")),
		"far behind":    write(a, 1<<20, []byte("more")),
		"new file":      write(b, 0, []byte("more")),
		"new directory": on(func() error { return os.Mkdir(filepath.Join(dir, "new"), 0o700) }),
		"allocate": on(func() error {
			f, err := os.OpenFile(a, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			return errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, 1<<20), f.Close())
		}),
	} {
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v, want %v", what, err, unix.ENOSPC)
		}
	}
	var st unix.Statfs_t
	must(t, on(func() error { return unix.Statfs(dir, &st) }))
	if st.Bavail != 0 {
		t.Errorf("%d blocks are available", st.Bavail)
	}
	must(t, on(func() error { return os.Remove(filepath.Join(dir, "there")) }))
	want := overwritten(overwritten(content, 100, "over"), len(content)-2, "mo") // a page at a time
	must(t, on(func() error {
		got, err := os.ReadFile(a)
		if !bytes.Equal(got, want) {
			t.Errorf("the file holds something else: %d bytes, the first that differs at %d", len(got), differ(got, want))
		}
		return err
	}))
	d.Heal()
	must(t, write(a, int64(len(content)), []byte("more")))
	must(t, write(b, 0, []byte("more")))
}

// overwritten returns content with text at an offset.
func overwritten(content []byte, at int, text string) []byte {
	out := bytes.Clone(content)
	copy(out[at:], text)
	return out
}

// child starts a shell command that sees the Disk. What may hang runs in processes of its own: one that is killed while it waits for itself can
// never end.
func child(t *testing.T, on func(func() error) error, command, name string) (cmd *exec.Cmd, ended chan error) {
	t.Helper()
	cmd, ended = exec.Command("/bin/sh", "-c", command, "sh", name), make(chan error, 1)
	must(t, on(cmd.Start))
	go func() { ended <- cmd.Wait() }()
	return cmd, ended
}

// awaitHanging waits until something is asked of a disk that hangs.
func awaitHanging(t *testing.T, d *disk.Disk) {
	t.Helper()
	for deadline := time.Now().Add(patience); d.Hanging() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is asked of the disk")
		}
	}
}

// TestHang: neither reading nor writing ends, a signal changes nothing, and all is done once it is healed; what is killed ends when
// that which hangs fails.
func TestHang(t *testing.T) {
	d, dir, on := mount(t)
	name := filepath.Join(dir, "file")
	d.Hang()
	_, ended := child(t, on, `printf late >"$1"`, name)
	awaitHanging(t, d)
	select {
	case err := <-ended:
		t.Fatalf("written to a disk that hangs: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	d.Heal()
	must(t, within(t, ended))
	text, err := os.ReadFile(name)
	if err != nil || string(text) != "late" {
		t.Errorf("%q, %v", text, err)
	}
	d.Hang()
	reader, ended := child(t, on, `exec cat "$1"`, name)
	awaitHanging(t, d)
	must(t, reader.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		t.Fatalf("ended by a signal: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, reader.Process.Kill())
	for deadline := time.After(patience); ; {
		d.Fail()
		select {
		case <-ended:
		case <-time.After(10 * time.Millisecond):
			continue
		case <-deadline:
			t.Fatal("a killed process hangs for ever")
		}
		break
	}
}

// within returns what a child ended with.
func within(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("it hangs")
		return nil
	}
}

// TestSlow: writes and syncs take longer, reads do not.
func TestSlow(t *testing.T) {
	d, dir, on := mount(t)
	name := filepath.Join(dir, "file")
	const by = 100 * time.Millisecond
	must(t, os.WriteFile(name, []byte("here"), 0o600))
	d.Slow(by)
	must(t, on(func() error {
		began := time.Now()
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte("x"))
		if err = errors.Join(err, f.Sync(), f.Close()); time.Since(began) < 2*by {
			t.Errorf("a write and a sync took %v", time.Since(began))
		}
		return err
	}))
	d.Heal()
	must(t, on(func() error { return os.WriteFile(name, []byte("there"), 0o600) }))
}

// TestMain is the database of TestDatabase if it is told so.
func TestMain(m *testing.M) {
	if name := os.Getenv(databaseEnv); name != "" {
		for i := 1; i < len(os.Args); i += 2 {
			if err := database(name, os.Args[i], os.Args[i+1]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// databaseEnv names a database file: the test program writes into it, or looks, in place of testing. A process that looks at its own Disk
// through a mapped file stands still for ever: the page that its program waits for is one that it must deliver itself.
const databaseEnv = "GRAPEVINE_TEST_DATABASE"

// database puts a value of so many bytes under a key. A negative size, -1 for none, checks what is there instead.
func database(name, key, size string) error {
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{Timeout: patience})
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(size)
	if err == nil && n < 0 {
		err = db.View(func(tx *bbolt.Tx) error {
			if got := len(tx.Bucket([]byte("b")).Get([]byte(key))); got != -n-1 {
				return fmt.Errorf("%s has %d bytes, want %d", key, got, -n-1)
			}
			return nil
		})
	} else if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return b.Put([]byte(key), bytes.Repeat([]byte("v"), n))
		})
	}
	return errors.Join(err, db.Close())
}

// TestDatabase: the store that nodes keep their log in, with its mapped file and its locks, works on a Disk, says when that is full, and
// holds what it said it holds.
func TestDatabase(t *testing.T) {
	d, dir, on := mount(t)
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env = append(os.Environ(), databaseEnv+"="+filepath.Join(dir, "db"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		must(t, on(cmd.Start))
		if err := cmd.Wait(); err != nil {
			return fmt.Sprint(err, ": ", out.String())
		}
		return ""
	}
	if problem := run("first", "1000"); problem != "" {
		t.Fatal(problem)
	}
	d.Fill()
	if problem := run("large", "4000000"); !strings.Contains(problem, unix.ENOSPC.Error()) {
		t.Errorf("on a full disk: %q", problem)
	}
	d.Heal()
	if problem := run("first", "-1001", "second", "4000000", "first", "-1001", "second", "-4000001", "large", "-1"); problem != "" {
		t.Error(problem)
	}
}

// TestClose: with a disk that hangs and somebody who waits for it, taking it away ends all of it.
func TestClose(t *testing.T) {
	d, dir, on := mount(t)
	d.Hang()
	_, ended := child(t, on, `printf late >"$1"`, filepath.Join(dir, "file"))
	awaitHanging(t, d)
	must(t, d.Close())
	must(t, d.Close())
	_ = within(t, ended) // with or without an error, by who was first
	if _, err := disk.Mount(filepath.Join(dir, "none"), on); err == nil {
		t.Error("mounted over nothing")
	}
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serveIn starts this program by a shell script that ends with: exec "$0" "$@".
func serveIn(t *testing.T, script string, args ...string) *process {
	t.Helper()
	return serveProgramIn(t, script, "", args...)
}

func serveProgramIn(t *testing.T, script, program string, args ...string) *process {
	t.Helper()
	p := newProcess(t, nil, args...)
	p.cmd.Args = append([]string{"sh", "-c", script, cmp.Or(program, p.cmd.Path)}, p.cmd.Args[1:]...)
	p.cmd.Path = "/bin/sh"
	p.start(t)
	return p
}

func talk(c net.Conn, br *bufio.Reader) (int, error) {
	const body = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, bufio.NewReader(c)
}

func engines(t *testing.T, n int) (flags []string) {
	t.Helper()
	for range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"choices":[],"data":[{"id":"m"}]}`)
		}))
		t.Cleanup(s.Close)
		flags = append(flags, "--backend", s.URL)
	}
	return flags
}

// TestFewDescriptors: above the limit of open files, the admin port and connected clients still get
// answers.
func TestFewDescriptors(t *testing.T) {
	p := serveIn(t, `ulimit -n 200 && exec "$0" "$@"`, append(engines(t, 3), "--drain-grace", "0s")...)
	type client struct {
		net.Conn
		br *bufio.Reader
	}
	var kept []client
	for range 20 {
		c, br := dial(t, p.data)
		kept = append(kept, client{c, br})
		if status, err := talk(c, br); err != nil || status != 200 {
			t.Fatalf("before: %d, %v", status, err)
		}
	}
	for range 400 {
		c, _ := dial(t, p.data)
		_, _ = io.WriteString(c, "POST /v1/chat") // some are closed by then
	}
	patient := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 5 {
		resp, err := patient.Get("http://" + p.admin + "/readyz")
		if err != nil {
			t.Fatalf("admin API: %v", err)
		}
		resp.Body.Close()
		for _, c := range kept {
			if status, err := talk(c, c.br); err != nil || status != 200 {
				t.Fatalf("a client that is connected: %d, %v", status, err)
			}
		}
	}
	if n := strings.Count(p.log.String(), "max_connections is lowered"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, p.log.String())
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// memoryGroup makes a cgroup and returns its process file and a function for its peak in bytes.
func memoryGroup(t *testing.T, limit int) (procs string, peak func() int) {
	t.Helper()
	for _, version := range []struct{ root, limit, peak string }{
		{"/sys/fs/cgroup", "memory.max", "memory.peak"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"},
	} {
		dir := filepath.Join(version.root, "grapevine-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { // the kernel needs a moment
			for deadline := time.Now().Add(10 * time.Second); os.Remove(dir) != nil && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
		})
		file, err := os.OpenFile(filepath.Join(dir, version.limit), os.O_WRONLY, 0)
		if err != nil {
			continue // a plain directory, or the other version's controller
		}
		_, err = file.WriteString(strconv.Itoa(limit))
		if file.Close(); err != nil {
			continue
		}
		return filepath.Join(dir, "cgroup.procs"), func() int {
			text, _ := os.ReadFile(filepath.Join(dir, version.peak))
			n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return n
		}
	}
	t.Skip("no cgroup with a memory limit can be made here: that takes root, and cgroups that are writable")
	return "", nil
}

// TestStalledUploads: uploads without their last byte do not kill a router in a cgroup of 1 GiB.
func TestStalledUploads(t *testing.T) {
	const size = 64 << 20
	procs, peak := memoryGroup(t, 1<<30)
	// The race detector multiplies memory.
	program := filepath.Join(t.TempDir(), "grapevine")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := serveProgramIn(t, `echo $$ > '`+procs+`' && exec "$0" "$@"`, program, append(engines(t, 1), "--max-body", "64MiB", "--drain-grace", "0s", "--drain-timeout", "1s")...)
	piece := make([]byte, 1<<20)
	for _, uploads := range []int{12, 20} {
		sent := make(chan bool, uploads)
		for range uploads {
			c, _ := dial(t, p.data)
			go func() {
				defer func() { sent <- true }()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
				for left := size - 1; left > 0; left -= len(piece) {
					if _, err := c.Write(piece[:min(left, len(piece))]); err != nil {
						return // refused
					}
				}
			}()
		}
		for range uploads {
			<-sent
		}
		c, br := dial(t, p.data)
		if status, err := talk(c, br); err != nil || status != 200 {
			t.Fatalf("with %d uploads: %d, %v\n%s", uploads, status, err, p.log.String())
		}
		t.Logf("%d uploads: the cgroup held %d MiB at most", uploads, peak()>>20)
	}
	if !strings.Contains(p.log.String(), `"cgroup_bytes":1073741824`) {
		t.Errorf("the collector does not follow the limit of the cgroup:\n%s", p.log.String())
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code < 0 {
		t.Errorf("it was killed: %v", p.cmd.ProcessState)
	}
}

//go:build linux

// Package programs starts the servers that benchmarks compare, each as a process of its own on
// loopback, and reads what they cost. It sends no load and judges nothing.
package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Model is the model that Await asks for; backends must serve it.
const Model = "bench"

// Install installs with apt the programs that are not in PATH.
func Install(ctx context.Context, programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	argv := append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, missing...)
	if os.Geteuid() != 0 {
		argv = append([]string{"sudo", "-n"}, argv...)
	}
	fmt.Fprintf(os.Stderr, "installing %s\n", strings.Join(missing, ", "))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w (install %s by hand)", strings.Join(argv, " "), err, strings.Join(missing, ", "))
	}
	return nil
}

// Version is the first line that a program prints.
func Version(argv ...string) string {
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

// FreeAddrs picks n loopback ports that are free at this moment, because the programs need their
// ports in advance.
func FreeAddrs(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // after all are picked, so that none is picked twice
		addrs[i] = ln.Addr().String()
	}
	return addrs, nil
}

// Process is ended by its id alone.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// PID is 0 for a nil process.
func (p *Process) PID() int {
	if p == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Start runs a program, with its output in a file in dir, and waits until it answers at addr. An
// error holds the end of the output and leaves no process. The program ends with the thread that
// started it, so the caller must not end its threads.
func Start(ctx context.Context, dir, addr string, argv ...string) (*Process, error) {
	output, err := os.CreateTemp(dir, "output")
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p := &Process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	// A killed benchmark must not leave servers behind.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_ = p.cmd.Wait() // its output tells the reason, so the error is not needed
		cancel(errors.New("it ended at once"))
		close(p.exited)
	}()
	if err := Await(ctx, addr); err != nil {
		p.Stop()
		said, _ := os.ReadFile(output.Name())
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said[max(0, len(said)-4<<10):])
	}
	return p, nil
}

// Stop sends SIGTERM, after 5 s SIGKILL, and waits. It may be called again.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// patience is how long a server may take to answer: those in Python import for seconds.
const patience = 30 * time.Second

// Await returns when a chat request to addr is answered.
func Await(ctx context.Context, addr string) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	deadline := time.Now().Add(patience)
	body := []byte(`{"model":"` + Model + `","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}`)
	for {
		err := Ask(ctx, client, addr, body)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer on %s: %w", addr, err)
		}
	}
}

// Ask sends a chat request and reads the answer to its end.
func Ask(ctx context.Context, client *http.Client, addr string, body []byte) error {
	resp, err := Post(ctx, client, addr, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// Post returns the answer to a chat request if its status is 200; the caller closes it. header may be
// nil, and is changed otherwise.
func Post(ctx context.Context, client *http.Client, addr string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = errors.New(resp.Status)
	}
	return resp, err
}

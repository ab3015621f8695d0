package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is ended by its id alone; a nil one never started. Safe for concurrent use.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu     sync.Mutex
	asked  bool
	reaped bool
}

// startProcess appends outputs to the file at log. The environment is this process's without
// grapevine settings, plus env.
func startProcess(t *thread, log, path string, args, env []string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	cmd := exec.Command(path, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GRAPEVINE_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = out, out
	tie(cmd)
	if err := t.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err, p.reaped = err, true
		p.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int {
	if p == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) signal(sig os.Signal) error {
	if p == nil {
		return errNotRunning
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGINT {
		p.asked = true
	}
	return p.cmd.Process.Signal(sig)
}

// kill waits for the end; no error if the process had ended.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// terminate waits; if ctx ends first, it kills the process and returns ctx's error.
func (p *process) terminate(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if err := p.signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("still running after SIGTERM: %w", ctx.Err()), p.kill())
	}
}

func (p *process) died() error {
	if p == nil || p.running() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return nil
	}
	if p.err == nil {
		return errors.New("ended by itself")
	}
	return fmt.Errorf("ended by itself: %w", p.err)
}

// tail returns at most max bytes from the start of a line, or the read error.
func tail(path string, max int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if cut := len(text) - max; cut > 0 {
		text = text[cut:]
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest
		}
	}
	return string(text)
}

// poll calls ok until it returns true or ctx ends, whose error it returns.
func poll(ctx context.Context, every time.Duration, ok func() bool) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if ok() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

//go:build linux

package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"
)

//go:embed nginx.cfg haproxy.cfg
var files embed.FS

// configs are the configuration files of the other proxies.
var configs = template.Must(template.ParseFS(files, "*.cfg"))

// setting is what a configuration file depends on. A second address is for streams.
type setting struct {
	Dir             string
	Addrs, Backends []string
	Root            bool
}

type contender struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Config is the whole configuration, for readers to judge and repeat.
	Config string `json:"config"`

	addr       string
	streamAddr string // for streams; nginx needs a server without buffering for those
	admin      string // source of CPU profiles; empty for other programs
	proc       *process
}

func (c *contender) pid() int {
	if c.proc == nil {
		return 0
	}
	return c.proc.cmd.Process.Pid
}

// stage is the backends of one kind and the contenders in front of them.
type stage struct {
	backend *process
	field   []*contender
	started []*process
}

func (st *stage) close() {
	for _, p := range slices.Backward(st.started) {
		p.stop()
	}
}

// setStage starts the backends and the contenders and waits until each answers. The caller closes
// the stage even after an error; it is never nil.
func setStage(ctx context.Context, o options, dir, backend string) (*stage, error) {
	st := &stage{}
	if backendKinds[backend] == "" {
		return st, errors.New("want engine or light")
	}
	backends, err := freeAddrs(backendCount)
	if err != nil {
		return st, err
	}
	self, err := os.Executable()
	if err != nil {
		return st, err
	}
	mode := map[string]string{"engine": "engine", "light": "backend"}[backend]
	if st.backend, err = st.start(ctx, dir, backends[0], append([]string{self, mode}, backends...)...); err != nil {
		return st, err
	}
	st.field = []*contender{{Name: "direct", Version: "no proxy, one of the backends", addr: backends[0], streamAddr: backends[0]}}
	for _, name := range []string{"nginx", "haproxy", "bare", "grapevine"} {
		if !strings.Contains(","+o.only+",", ","+name+",") {
			continue
		}
		addrs, err := freeAddrs(2)
		if err != nil {
			return st, err
		}
		c, argv := &contender{Name: name, addr: addrs[0], streamAddr: addrs[0]}, []string(nil)
		switch name {
		case "nginx":
			c.streamAddr, c.Version = addrs[1], version("nginx", "-v")
			argv = []string{"nginx", "-c", dir + "/nginx.cfg", "-e", dir + "/nginx.err"}
		case "haproxy":
			c.Version = version("haproxy", "-v")
			argv = []string{"haproxy", "-db", "-f", dir + "/haproxy.cfg"}
		case "bare":
			c.streamAddr, c.Version = "", "what grapevine's HTTP library costs alone" // it cannot stream
			argv = append([]string{self, "bare", addrs[0]}, backends...)
		case "grapevine":
			c.admin, c.Version = addrs[1], version(o.binary, "version")
			argv = []string{o.binary, "serve", "--listen", addrs[0], "--admin", addrs[1], "--log-level", "warn", "--pprof"}
			for _, b := range backends {
				argv = append(argv, "--backend", "http://"+b)
			}
		}
		c.Config = strings.Join(argv, " ")
		if file := configs.Lookup(name + ".cfg"); file != nil {
			var text bytes.Buffer
			err := file.Execute(&text, setting{Dir: dir, Addrs: addrs, Backends: backends, Root: os.Geteuid() == 0})
			c.Config = text.String()
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, file.Name()), text.Bytes(), 0o644)); err != nil {
				return st, err
			}
		}
		if c.proc, err = st.start(ctx, dir, c.addr, argv...); err != nil {
			return st, err
		}
		st.field = append(st.field, c)
	}
	return st, nil
}

func version(argv ...string) string {
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// start runs a program until the stage closes, and waits until it answers at addr.
func (st *stage) start(ctx context.Context, dir, addr string, argv ...string) (*process, error) {
	output, err := os.CreateTemp(dir, "output")
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	// A killed bench must not leave servers behind.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	st.started = append(st.started, p)
	go func() {
		_ = p.cmd.Wait() // its output tells the reason, so the error is not needed
		close(p.exited)
	}()
	if err := p.await(ctx, addr); err != nil {
		said, _ := os.ReadFile(output.Name())
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said[max(0, len(said)-4<<10):])
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

func (p *process) await(ctx context.Context, addr string) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	deadline := time.Now().Add(10 * time.Second)
	body := []byte(`{"model":"bench","messages":[{"role":"user","content":"hello"}]}`)
	for {
		err := ask(ctx, client, addr, body)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer on %s: %w", addr, err)
		}
	}
}

// freeAddrs picks n loopback ports that are free at this moment, because the programs need their
// ports in advance.
func freeAddrs(n int) ([]string, error) {
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

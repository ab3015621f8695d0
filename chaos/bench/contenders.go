//go:build linux

package main

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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

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
			c.streamAddr, c.Version, c.Config = addrs[1], version("nginx", "-v"), nginxConfig(dir, addrs, backends)
			argv = []string{"nginx", "-c", dir + "/nginx.cfg", "-e", dir + "/nginx.err"}
		case "haproxy":
			c.Version, c.Config = version("haproxy", "-v"), haproxyConfig(addrs[0], backends)
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
		if c.Config == "" {
			c.Config = strings.Join(argv, " ")
		} else if err := os.WriteFile(filepath.Join(dir, name+".cfg"), []byte(c.Config), 0o644); err != nil {
			return st, err
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
	body := `{"model":"bench","messages":[{"role":"user","content":"hello"}]}`
	for {
		resp, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
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

// nginxConfig has a second server without buffering, for streams.
func nginxConfig(dir string, addrs, backends []string) string {
	var servers strings.Builder
	for _, b := range backends {
		fmt.Fprintf(&servers, "    server %s;\n", b)
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;\n"
	}
	// client_body_buffer_size keeps bodies in memory, which is cheaper for nginx than its default
	// file beyond 16 KiB.
	location := "    location / {\n      proxy_pass http://engines;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_read_timeout 600s;\n"
	return fmt.Sprintf(`%sworker_processes 2;
daemon off;
pid %s/nginx.pid;
error_log %s/nginx.err warn;
events { worker_connections 8192; }
http {
  access_log off;
  tcp_nodelay on;
  client_max_body_size 64m;
  client_body_buffer_size 256k;
  client_body_temp_path %s/nginx-body;
  proxy_temp_path %s/nginx-proxy;
  fastcgi_temp_path %s/nginx-fastcgi;
  uwsgi_temp_path %s/nginx-uwsgi;
  scgi_temp_path %s/nginx-scgi;
  keepalive_timeout 600s;
  keepalive_requests 1000000000;
  upstream engines {
%s    keepalive 1024;
    keepalive_requests 1000000000;
  }
  server {
    listen %s backlog=4096;
%s    }
  }
  server {
    listen %s backlog=4096;
%s      proxy_buffering off;
    }
  }
}
`, user, dir, dir, dir, dir, dir, dir, dir, servers.String(), addrs[0], location, addrs[1], location)
}

func haproxyConfig(addr string, backends []string) string {
	var servers strings.Builder
	for i, b := range backends {
		fmt.Fprintf(&servers, "  server e%d %s\n", i, b)
	}
	return fmt.Sprintf(`global
  nbthread 2
  maxconn 8000
defaults
  mode http
  option http-keep-alive
  http-reuse always
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout http-keep-alive 600s
frontend in
  bind %s backlog 4096
  default_backend engines
backend engines
  balance roundrobin
%s`, addr, servers.String())
}

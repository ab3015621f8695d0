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

type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	output *tail
}

type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 8<<10 {
		t.b = t.b[len(t.b)-4<<10:]
	}
	return len(p), nil
}

func startProcess(name string, argv ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{}), output: &tail{}}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// A killed bench must not leave servers behind.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // its output tells the reason, so the error is not needed
		close(p.exited)
	}()
	return p, nil
}

func (p *process) stop() {
	if p == nil {
		return
	}
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
			return fmt.Errorf("%s ended at once: %s", p.name, p.output.b)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer on %s: %w", p.name, addr, err)
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

func startNginx(dir string, backends []string) (*contender, error) {
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, err
	}
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
	conf := fmt.Sprintf(`%sworker_processes 2;
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
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess("nginx", "nginx", "-c", path, "-e", filepath.Join(dir, "nginx.err"))
	if err != nil {
		return nil, err
	}
	return &contender{Name: "nginx", Version: programVersion("nginx", "-v"), Config: conf, addr: addrs[0], streamAddr: addrs[1], proc: p}, nil
}

func startHAProxy(dir string, backends []string) (*contender, error) {
	addrs, err := freeAddrs(1)
	if err != nil {
		return nil, err
	}
	var servers strings.Builder
	for i, b := range backends {
		fmt.Fprintf(&servers, "  server e%d %s\n", i, b)
	}
	conf := fmt.Sprintf(`global
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
%s`, addrs[0], servers.String())
	path := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	p, err := startProcess("haproxy", "haproxy", "-db", "-f", path)
	if err != nil {
		return nil, err
	}
	return &contender{Name: "haproxy", Version: programVersion("haproxy", "-v"), Config: conf, addr: addrs[0], streamAddr: addrs[0], proc: p}, nil
}

func startGrapevine(binary string, backends, extra []string) (*contender, error) {
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, err
	}
	argv := []string{binary, "serve", "--listen", addrs[0], "--admin", addrs[1], "--log-level", "warn", "--pprof"}
	for _, b := range backends {
		argv = append(argv, "--backend", "http://"+b)
	}
	argv = append(argv, extra...)
	p, err := startProcess("grapevine", argv...)
	if err != nil {
		return nil, err
	}
	return &contender{Name: "grapevine", Version: programVersion(binary, "version"), Config: strings.Join(argv, " "),
		addr: addrs[0], streamAddr: addrs[0], admin: addrs[1], proc: p}, nil
}

func programVersion(argv ...string) string {
	out, _ := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

func install(ctx context.Context, log io.Writer, programs ...string) error {
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
	fmt.Fprintf(log, "installing %s\n", strings.Join(missing, ", "))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w (install %s by hand)", strings.Join(argv, " "), err, strings.Join(missing, ", "))
	}
	return nil
}

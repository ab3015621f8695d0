package fleet

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// haproxyText is deploy/example/haproxy.cfg with the addresses of a fleet. It omits the log, the
// user, the large connection limits, and the PROXY header, which would block the harness's own
// readiness checks. A test compares the rest.
var haproxyText = template.Must(template.New("haproxy.cfg").Parse(`global
    stats socket {{.Socket}} mode 600 level admin
    maxconn 4000

defaults
    mode tcp
    option dontlognull
    timeout connect 2s
    retries 3
    option redispatch
    timeout client 15m
    timeout server 15m
    timeout check 1s
    option clitcpka
    option srvtcpka

frontend inference
    bind {{.Addr}}
    default_backend routers

backend routers
    balance leastconn
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host router hdr Connection close
    http-check expect status 200
    default-server check inter 1s fall 2 rise 2
{{- range .Targets}}
    server {{.Name}} {{.Addr}}
{{- end}}
`))

type haproxy struct {
	addr    string
	socket  string
	targets []Target
	log     string
	proc    *process
}

func findHAProxy() (string, error) {
	path, err := exec.LookPath("haproxy")
	if errors.Is(err, exec.ErrNotFound) {
		path, err = exec.LookPath("/usr/sbin/haproxy")
	}
	if err != nil {
		return "", fmt.Errorf("fleet: no HAProxy (package haproxy): %w", err)
	}
	return path, nil
}

// startHAProxy starts it on a thread, with its files in dir, and returns when it listens and all
// targets are healthy.
func startHAProxy(ctx context.Context, t *thread, dir, addr string, targets []Target) (*haproxy, error) {
	path, err := findHAProxy()
	if err != nil {
		return nil, err
	}
	h := &haproxy{addr: addr, socket: filepath.Join(dir, "haproxy.sock"), targets: targets, log: filepath.Join(dir, "haproxy.log")}
	var text bytes.Buffer
	if err := haproxyText.Execute(&text, map[string]any{"Socket": h.socket, "Addr": addr, "Targets": targets}); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, text.Bytes(), 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, path, "-c", "-f", config).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("fleet: haproxy -c: %w: %s", err, bytes.TrimSpace(out))
	}
	if h.proc, err = startProcess(t, h.log, path, []string{"-db", "-f", config}, nil); err != nil {
		return nil, err
	}
	for _, target := range targets {
		if err := h.waitHealthy(ctx, target.Name, true); err != nil {
			return nil, errors.Join(err, h.Close())
		}
	}
	return h, nil
}

// Close kills it; the kernel closes its connections.
func (h *haproxy) Close() error { return h.proc.kill() }

func (h *haproxy) died() error {
	if err := h.proc.died(); err != nil {
		return fmt.Errorf("haproxy: %w\n%s", err, tail(h.log, shownLog))
	}
	return nil
}

func (h *haproxy) waitHealthy(ctx context.Context, name string, healthy bool) error {
	var last error
	err := poll(ctx, 20*time.Millisecond, func() bool {
		if last = h.died(); last != nil {
			return true
		}
		var stats []TargetStats
		stats, last = h.stats(ctx)
		for _, t := range stats {
			if t.Name == name {
				return t.Healthy == healthy
			}
		}
		return false
	})
	if err = errors.Join(err, last); err != nil {
		return fmt.Errorf("haproxy: %s did not become healthy=%v: %w", name, healthy, err)
	}
	return nil
}

func (h *haproxy) stats(ctx context.Context) ([]TargetStats, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", h.socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, "show stat\n"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return nil, err
	}
	return h.parse(text)
}

// parse reads the table of "show stat": a line of names after "# ", then a line for each proxy and
// server.
func (h *haproxy) parse(text []byte) (out []TargetStats, err error) {
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(text), "# "))).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("haproxy: statistics %q: %w", text[:min(len(text), 200)], err)
	}
	if len(rows) == 0 {
		return nil, errors.New("haproxy: no statistics")
	}
	column := make(map[string]int)
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, name := range []string{"svname", "status", "stot", "econ", "srv_abrt"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("haproxy: statistics without %s", name)
		}
	}
	for _, t := range h.targets {
		for _, row := range rows[1:] {
			if row[column["svname"]] != t.Name {
				continue
			}
			s := TargetStats{Target: t, Healthy: strings.HasPrefix(row[column["status"]], "UP")} // "UP 1/2" begins to fail
			for name, n := range map[string]*int64{"stot": &s.Connections, "econ": &s.Refused, "srv_abrt": &s.Broken} {
				if *n, err = strconv.ParseInt(row[column[name]], 10, 64); err != nil {
					return nil, fmt.Errorf("haproxy: %s: %w", name, err)
				}
			}
			out = append(out, s)
		}
	}
	return out, nil
}

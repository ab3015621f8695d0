package fleet

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"
)

// haproxyFile is deploy/example/haproxy.cfg (a test compares them) with a fleet's addresses,
// without log, user, large limits, and PROXY header, which would block readiness checks.
//
//go:embed haproxy.cfg.tmpl
var haproxyFile string

var haproxyText = template.Must(template.New("haproxy.cfg").Parse(haproxyFile))

type haproxy struct {
	addr, socket, log string
	proc              *process
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

// startHAProxy waits until all targets are healthy.
func startHAProxy(ctx context.Context, t *thread, dir, addr string, targets []Target) (front, error) {
	path, err := findHAProxy()
	if err != nil {
		return nil, err
	}
	h := &haproxy{addr: addr, socket: filepath.Join(dir, "haproxy.sock"), log: filepath.Join(dir, "haproxy.log")}
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
		if err := waitHealthy(ctx, h, target.Name, true); err != nil {
			return nil, errors.Join(err, h.Close())
		}
	}
	return h, nil
}

func (h *haproxy) Addr() string { return h.addr }

func (h *haproxy) Close() error { return h.proc.kill() }

func (h *haproxy) died() error {
	if err := h.proc.died(); err != nil {
		return fmt.Errorf("haproxy: %w\n%s", err, tail(h.log, shownLog))
	}
	return nil
}

// healthy reads the table of "show stat", which begins with a line of names.
func (h *haproxy) healthy(ctx context.Context, name string) (bool, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", h.socket)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(c, "show stat\n"); err != nil {
		return false, err
	}
	rows, err := csv.NewReader(io.LimitReader(c, maxAnswer)).ReadAll()
	if err != nil || len(rows) == 0 {
		return false, fmt.Errorf("haproxy: %d lines of statistics: %w", len(rows), err)
	}
	server, status := slices.Index(rows[0], "svname"), slices.Index(rows[0], "status")
	if server < 0 || status < 0 {
		return false, fmt.Errorf("haproxy: statistics without svname or status: %v", rows[0])
	}
	for _, row := range rows[1:] {
		if row[server] == name {
			return strings.HasPrefix(row[status], "UP"), nil // "UP 1/2" begins to fail
		}
	}
	return false, fmt.Errorf("haproxy: no server %s", name)
}

package deploy_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const unitFile = "systemd/grapevine.service"

type unit map[string][]string

func readUnit(t *testing.T, files ...string) unit {
	t.Helper()
	u := unit{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		section := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			switch {
			case line == "", line[0] == '#':
			case line[0] == '[':
				section = strings.Trim(line, "[]")
			default:
				key, value, ok := strings.Cut(line, "=")
				if !ok || strings.HasSuffix(value, `\`) {
					t.Fatalf("%s: %q is no assignment on one line", file, line)
				}
				u[section+"."+key] = append(u[section+"."+key], value)
			}
		}
	}
	return u
}

func (u unit) last(t *testing.T, key string) string {
	t.Helper()
	values := u[key]
	if len(values) == 0 {
		t.Fatalf("%s is not set", key)
	}
	return values[len(values)-1]
}

func (u unit) duration(t *testing.T, key string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(u.last(t, key))
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return d
}

func examples(t *testing.T) (hosts []string, common string) {
	t.Helper()
	hosts, err := filepath.Glob("example/router-*/*.conf")
	if err != nil || len(hosts) != 3 {
		t.Fatalf("the drop-ins of three hosts: %v %v", hosts, err)
	}
	return hosts, "example/20-resources.conf"
}

func TestUnit(t *testing.T) {
	u := readUnit(t, unitFile)
	for key, want := range map[string]string{
		"Service.Type": "notify", "Service.NotifyAccess": "main", "Service.Restart": "always", "Unit.StartLimitIntervalSec": "0",
		"Service.KillMode": "mixed", "Service.StateDirectory": "grapevine", "Service.StateDirectoryMode": "0700",
		"Service.ExecStart": "/usr/bin/grapevine serve --config /etc/grapevine/grapevine.yaml",
	} {
		if got := u.last(t, key); got != want {
			t.Errorf("%s=%s, want %s", key, got, want)
		}
	}
	// A third of it bounds one health check, of which a quarter second passes until the loops have
	// reported.
	if d := u.duration(t, "Service.WatchdogSec"); d < 5*time.Second {
		t.Errorf("WatchdogSec=%v leaves a busy node no time to answer", d)
	}
	// Without /proc/sys Go cannot read somaxconn and listens with a queue of 128.
	if slices.Contains(u["Service.ProcSubset"], "pid") {
		t.Error("ProcSubset=pid")
	}
	hosts, common := examples(t)
	names := map[string]bool{}
	for _, host := range hosts {
		for _, line := range readUnit(t, unitFile, host, common)["Service.Environment"] {
			if name, ok := strings.CutPrefix(line, "GRAPEVINE_NODE_NAME="); ok {
				if names[name] || filepath.Base(filepath.Dir(host)) != name {
					t.Errorf("%s: node %s", host, name)
				}
				names[name] = true
			}
		}
	}
	if len(names) != len(hosts) {
		t.Errorf("%d names for %d hosts", len(names), len(hosts))
	}
}

// tool returns the path of a program that make test-deploy installs, and skips the test elsewhere,
// because other versions may disagree.
func tool(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("GRAPEVINE_DEPLOY") == "" {
		t.Skip("make test-deploy runs it")
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func installed(t *testing.T, dropIns ...string) string {
	t.Helper()
	root := t.TempDir()
	place := func(to string, text []byte, mode os.FileMode) {
		t.Helper()
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, mode); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string) []byte {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	place("usr/lib/systemd/system/grapevine.service", read(unitFile), 0o644)
	place("usr/lib/systemd/system/grapevine.socket", read("systemd/grapevine.socket"), 0o644)
	for _, d := range dropIns {
		place(filepath.Join("etc/systemd/system/grapevine.service.d", filepath.Base(d)), read(d), 0o644)
	}
	for _, program := range []string{"usr/bin/grapevine", "bin/sh"} {
		place(program, []byte("#!/bin/sh\n"), 0o755)
	}
	// Units that every system has and the unit depends on.
	for _, target := range []string{"sysinit", "basic", "network-online", "nss-lookup", "shutdown", "multi-user", "sockets"} {
		place("usr/lib/systemd/system/"+target+".target", []byte("[Unit]\nDescription="+target+"\n"), 0o644)
	}
	return root
}

func run(t *testing.T, program string, args ...string) (output string, failure error) {
	t.Helper()
	var both bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &both, &both
	failure = cmd.Run()
	return both.String(), failure
}

func TestSystemd(t *testing.T) {
	analyze := tool(t, "systemd-analyze")
	hosts, common := examples(t)
	for _, host := range hosts {
		root := installed(t, host, common)
		if out, err := run(t, analyze, "verify", "--root="+root, "--recursive-errors=no", "--man=no", "grapevine.service", "grapevine.socket"); err != nil || strings.Contains(out, "grapevine") {
			t.Errorf("%s: %v\n%s", host, err, out)
		}
		if out, err := run(t, analyze, "security", "--root="+root, "--offline=true", "--threshold=20", "--no-pager", "grapevine.service"); err != nil {
			t.Errorf("%s: exposure above 2.0: %v\n%s", host, err, out)
		}
	}
	// Proves that the check finds a mistake.
	wrong := filepath.Join(t.TempDir(), "30-wrong.conf")
	if err := os.WriteFile(wrong, []byte("[Service]\nWatchdogSecs=30s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, analyze, "verify", "--root="+installed(t, wrong), "--recursive-errors=no", "--man=no", "grapevine.service"); err == nil || !strings.Contains(out, "WatchdogSecs") {
		t.Errorf("a key that does not exist: %v\n%s", err, out)
	}
	open := filepath.Join(t.TempDir(), "30-open.conf")
	if err := os.WriteFile(open, []byte("[Service]\nProtectSystem=no\nPrivateUsers=no\nCapabilityBoundingSet=~\nSystemCallFilter=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, analyze, "security", "--root="+installed(t, open), "--offline=true", "--threshold=20", "--no-pager", "grapevine.service"); err == nil {
		t.Error("an open unit passes for a closed one")
	}
}

func TestHAProxy(t *testing.T) {
	text, err := os.ReadFile("example/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	hosts, _ := examples(t)
	for _, host := range hosts {
		env := map[string]string{}
		for _, line := range readUnit(t, host)["Service.Environment"] {
			key, value, _ := strings.Cut(line, "=")
			env[key] = value
		}
		if want := fmt.Sprintf("server %s %s\n", env["GRAPEVINE_NODE_NAME"], env["GRAPEVINE_LISTEN"]); !strings.Contains(string(text), want) {
			t.Errorf("%s: no %q in haproxy.cfg", host, want)
		}
	}
	haproxy := tool(t, "haproxy")
	if out, err := run(t, haproxy, "-c", "-f", "example/haproxy.cfg"); err != nil || strings.Contains(out, "parsing [") {
		t.Errorf("%v\n%s", err, out)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"grapevine.example/node/admin"
)

const fleetSecret = "the secret of a fleet that is a test"

func (p *process) gossipAddr(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`"gossip":"([^"]+)"`).FindStringSubmatch(p.log.String())
	if m == nil {
		t.Fatalf("no gossip address: %s", p.log.String())
	}
	return m[1]
}

func TestFleetByCommands(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if got := grapevine(t, "", "keys", "generate", "--out", key); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	copyOf := func(name string) string {
		text, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	args := func(name string, more ...string) []string {
		return append([]string{"--node-name", name, "--gossip", "127.0.0.1:0", "--secret", fleetSecret, "--gossip-key-file", copyOf(name), "--drain-grace", "0s"}, more...)
	}
	one := serve(t, args("one")...)
	seed := one.gossipAddr(t)
	two := serve(t, args("two", "--join", seed)...)

	var list admin.NodeList
	eventually(t, "both list both", func() bool {
		for _, p := range []*process{one, two} {
			got := grapevine(t, "", "nodes", "--admin", p.admin, "--json")
			if got.code != 0 || json.Unmarshal([]byte(got.out), &list) != nil || len(list.Nodes) != 2 || !list.Nodes[1].Connected {
				return false
			}
		}
		return true
	})
	if got := grapevine(t, "", "nodes", "--admin", one.admin); got.code != 0 || !strings.Contains(got.out, "one *") || !strings.Contains(got.out, "two ") {
		t.Errorf("%+v", got)
	}
	eventually(t, "both are ready", func() bool {
		a, b := grapevine(t, "", "status", "--admin", one.admin), grapevine(t, "", "status", "--admin", two.admin)
		return strings.Contains(a.out, "fleet     2 nodes") && strings.Contains(a.out, ", ready") && strings.Contains(b.out, ", ready")
	})

	odd := append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args("odd", "--join", seed, "--secret", "another secret than the fleet has")...)
	if got := grapevine(t, "", odd...); got.code != exitFailed || !strings.Contains(got.err, "the fleet does not take this node: "+seed+" hashes prompts with another secret") ||
		!strings.Contains(got.err, "give every node the same --secret-file") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}

	next := filepath.Join(dir, "next")
	if got := grapevine(t, "", "keys", "generate", "--out", next, "--json"); got.code != 0 || !strings.Contains(got.out, next) || strings.Contains(got.out, `"key"`) {
		t.Errorf("%+v", got)
	}
	var keys admin.KeyList
	got := grapevine(t, "", "keys", "install", next, "--admin", one.admin, "--json")
	if err := json.Unmarshal([]byte(got.out), &keys); err != nil || got.code != 0 || len(keys.Nodes) != 2 || len(keys.Nodes[1].Keys) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	oldID, newID := keys.Nodes[0].Keys[0], keys.Nodes[0].Keys[1]
	if got := grapevine(t, "", "keys", "remove", oldID, "--admin", one.admin); got.code != exitFailed || !strings.Contains(got.err, "use another one first") {
		t.Errorf("%+v", got)
	}
	for _, step := range [][]string{{"use", newID}, {"remove", oldID}, {"list"}} {
		if got := grapevine(t, "", append(append([]string{"keys"}, step...), "--admin", one.admin)...); got.code != 0 || strings.Count(got.out, newID) != 2 {
			t.Errorf("%v: %+v", step, got)
		}
	}

	two.signal(t, syscall.SIGTERM)
	if code := two.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, two.log.String())
	}
	eventually(t, "the other has left", func() bool {
		got := grapevine(t, "", "nodes", "--admin", one.admin)
		return regexp.MustCompile(`(?m)^two +(left|failed)`).MatchString(got.out)
	})
	one.signal(t, syscall.SIGTERM)
	if code := one.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, one.log.String())
	}
}

func TestFleetMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // independent of the umask
			t.Fatal(err)
		}
		return path
	}
	text, _ := admin.NewGossipKey()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no secret", []string{"--join", "10.0.0.1", "--gossip-key-file", write("a", text, 0o600)}, "--secret-file"},
		{"no key", []string{"--join", "10.0.0.1", "--secret", fleetSecret}, "grapevine keys generate"},
		{"no such key file", []string{"--join", "10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", filepath.Join(dir, "none")}, "grapevine keys generate"},
		{"open key file", []string{"--join", "10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", write("b", text, 0o644)}, "chmod 600"},
		{"no key in it", []string{"--join", "10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", write("c", "# nothing\n", 0o600)}, "no key in it"},
		{"half a key", []string{"--join", "10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", write("d", text[:10], 0o600)}, "d: "},
		{"bad seed", []string{"--join", "http://10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", write("e", text, 0o600)}, `join: entry 1, "http://10.0.0.1"`},
		{"no certificate", []string{"--join", "10.0.0.1", "--secret", fleetSecret, "--gossip-key-file", write("f", text, 0o600),
			"--gossip-cert", filepath.Join(dir, "none"), "--gossip-cert-key", filepath.Join(dir, "none"), "--gossip-ca", filepath.Join(dir, "none")}, "gossip_cert: "},
	} {
		got := grapevine(t, "", append([]string{"serve", "--check-config"}, tc.args...)...)
		if got.code != exitUsage || !strings.Contains(got.err, tc.want) || strings.Contains(got.err, text) {
			t.Errorf("%s: exit %d, stderr %q, want %q", tc.name, got.code, got.err, tc.want)
		}
	}
	good := fmt.Sprintf("join: [10.0.0.1, 'dns:nodes.example']\nsecret: %s\ngossip_key_file: %s\n", fleetSecret, write("g", text, 0o600))
	if got := grapevine(t, "", "serve", "--check-config", "--config", write("g.yaml", good, 0o600)); got.code != 0 {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"keys", "install", write("h", "rubbish", 0o600)}, {"keys", "install", filepath.Join(dir, "none")}, {"keys", "use"}} {
		if got := grapevine(t, "", args...); got.code != exitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestStartIsCalledOff(t *testing.T) {
	cmd := command(t, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--gossip-advertise", "127.0.0.1:7946",
		"--join", "192.0.2.1:7946", "--secret", fleetSecret, "--warm-deadline", "50s", "--log-format", "json", "--log-level", "debug")
	log := &watchedLog{found: make(chan []string, 1)}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, log: log}
	eventually(t, "it says something", func() bool { return log.String() != "" })
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, log.String())
	}
}

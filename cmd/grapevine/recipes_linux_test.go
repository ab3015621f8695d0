package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/node/admin"
)

// recipe is what the readers of a section have and see beside its commands.
type recipe struct {
	before  string   // what they have done before, in bash
	prints  string   // a text that the commands must print
	after   string   // what must then hold, in bash; no grep -q after a pipe, which may end before the program has printed all
	replace []string // placeholders, and what the readers write there
	breaks  bool     // the fleet is not as before afterwards
}

var recipes = map[string]recipe{
	"Against real engines": {
		before: `echo '{"model":"my-model","messages":[{"role":"user","content":"hi"}]}' >request.json
printf 'rules:\n  - {model: "batch-*", strategy: least-request}\n' >rules.yaml`,
		prints: `"choices"`,
		after:  `grapevine backends | grep 'gpu1:8000 *draining'; grapevine backends | grep 'gpu3:8000 *active'`,
	},
	"Would it help my traffic?": {
		before: `for i in {1..200}; do echo "{\"timestamp\":$((i*50)),\"input_length\":2048,\"output_length\":20,\"hash_ids\":[1,2,$((i%9+3)),$((i+20))]}"; done | gzip >trace.jsonl.gz`,
		prints: "round-robin",
		after:  `grep -q '<svg' out.svg`,
	},
	"Pointing it at engines":   {prints: "by prefix, rung"},
	"Prefill and decode apart": {after: `test "$(grapevine backends --json | jq -c '[.backends[].role] | sort | map(select(. != null))' | tee /dev/stderr)" = '["decode","decode","decode","prefill","prefill","prefill"]'`},
	"Do prompts share what they could?": {
		before: `for i in {1..30}; do curl -s "http://localhost:8080/v1/completions" -d "{\"model\":\"m\",\"prompt\":\"$i $(printf 'the same text %.0s' {1..200})\",\"max_tokens\":1}" -o /dev/null; done`,
		prints: "client search, model m",
	},
	"A release": {
		before: `ssh-keygen -q -t ed25519 -N '' -f key; echo release >grapevine_1.0.0_amd64.deb; sha256sum grapevine_1.0.0_amd64.deb >SHA256SUMS
ssh-keygen -q -Y sign -f key -n grapevine-release SHA256SUMS; echo "release@grapevine $(cat key.pub)" >signers`,
		prints: "grapevine_1.0.0_amd64.deb: OK",
	},
	"A fleet": {after: `test "$(stat -c %a gossip.key)" = 600; test "$(wc -c <secret)" = 65`},
	"Change the engines": {
		prints: "drained",
		after:  `grapevine backends | grep 'gpu7:8000 *active'; test -z "$(grapevine backends | grep 'gpu8:8000' || true)"`,
	},
	"Data-parallel ranks": {
		before: `grapevine backends add http://gpu7:8000`,
		after:  `grapevine backends | grep 'gpu7:8000@1 *active'; test -z "$(grapevine backends | grep 'gpu7:8000 ' || true)"`,
	},
	"Hot prefixes": {after: `grapevine prefixes hot | grep 'is off'; grapevine prefixes hot --enable`},
	"Rules":        {before: `grapevine backends add http://gpu7:8000`, prints: "rule canary; engines are asked for qwen3-8b; pool version=v2"},
	"Lose the majority": {
		before: `id() { grapevine raft inspect --data-dir /var/lib/grapevine/raft --json | jq -r .id; }
for n in 2 3; do kill -KILL "$(cat "$FLEET/router-$n/pid")"; done`,
		replace: []string{"ID=", "$(id)="},
		prints:  "a group of 1, of which 1 vote",
		after:   `grapevine raft status | grep 'is leader'; grapevine backends add http://gpu8:8000`,
		breaks:  true,
	},
	"What to know": {
		before: `ids() { grapevine keys list --json | jq -r '.nodes[0].keys[]'; }
old=$(ids); new() { ids | grep -v "$old"; }`,
		replace: []string{"NEW-ID", "$(new)", "OLD-ID", "$old"},
		after:   `test "$(ids)" != "$old"; test "$(grapevine keys list --json | jq -c '[.nodes[].keys | length]')" = '[1,1,1]'`,
	},
	"Events": {
		before: `grapevine backends add http://gpu8:8000
curl -s -X PATCH http://127.0.0.1:8081/backends -H 'Content-Type: application/json' -d '{"names":["gpu8:8000"],"action":"down","reason":"smoke"}'
until grep -q engine_down "$HOST/log"; do sleep 0.1; done`,
		prints: `"event":"engine_down"`,
	},
	"A line for each request": {
		before: `for i in 1 2 3; do curl -s http://localhost:8080/v1/completions -d '{"model":"m","prompt":"hello","max_tokens":1}' -o /dev/null; done
until [ "$(wc -l <"$HOST/access.log")" -ge 3 ]; do sleep 0.1; done; cp "$HOST/access.log" .`,
		prints: ".", // milliseconds, not null
	},
}

// programs stand in the readers' PATH. A router that is started goes on in the background once it is ready, as in another terminal;
// HOST is the directory of its machine.
var programs = map[string]string{
	"grapevine": `export ` + asProgram + `=1 GORACE=atexit_sleep_ms=0
case " $* " in
*" --check-config "*) ;;
" serve "*)
	"$PROGRAM" "$@" </dev/null >>"$HOST/log" 2>&1 &
	echo $! >"$HOST/pid"
	until curl -s -o /dev/null "http://$GRAPEVINE_ADMIN/readyz"; do
		readlink -q "/proc/$!/exe" >/dev/null || break
		sleep 0.1
	done
	readlink -q "/proc/$!/exe" >/dev/null || { tail "$HOST/log" >&2; exit 1; }
	exit ;;
esac
exec "$PROGRAM" "$@"`,
	"grapevine-lab": `exec "$LAB" "$@"`,
	"curl":          `exec "$CURL" --fail --max-time 60 "$@"`,
	"sudo":          `[ "$1" != -u ] || shift 2; exec "$@"`,
	"systemctl": `case "$*" in
"stop grapevine")
	kill "$(cat "$HOST/pid")"
	while readlink -q "/proc/$(cat "$HOST/pid")/exe" >/dev/null; do sleep 0.1; done ;;
"start grapevine") exec grapevine serve --config "$HOST/grapevine.yaml" ;;
*) echo "this machine has no systemd for: systemctl $*" >&2; exit 1 ;;
esac`,
	"journalctl": `echo "systemd[1]: Started grapevine."; cat "$HOST/log"`,
}

// machines are three routers of a fleet and one alone, and engines, each at an address of loopback that no other test has.
type machines struct {
	dir     string
	net     string // "127.70.3."
	env     []string
	running bool
}

func (m *machines) host(n int) string  { return filepath.Join(m.dir, fmt.Sprintf("router-%d", n)) }
func (m *machines) addr(n int) string  { return m.net + strconv.Itoa(n) }
func (m *machines) admin(n int) string { return m.addr(10+n) + ":8081" }

const alone = 0 // the router that a section starts itself

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{dir: t.TempDir(), net: fmt.Sprintf("127.%d.%d.", 64+os.Getpid()>>8%128, os.Getpid()%256)}
	m.env = []string{"FLEET=" + m.dir, "PROGRAM=" + os.Args[0], "LAB=" + lab(t), "HOME=" + m.dir, "LC_ALL=C.UTF-8", "PATH=" + filepath.Join(m.dir, "bin") + ":" + os.Getenv("PATH")}
	for _, tool := range []string{"bash", "curl", "jq", "openssl", "ssh-keygen", "gzip"} {
		path, err := exec.LookPath(tool)
		if err != nil && os.Getenv("GRAPEVINE_DEPLOY") == "" {
			t.Skipf("%s is not installed; make test-deploy installs it", tool)
		} else if err != nil {
			t.Fatal(err)
		}
		if tool == "curl" {
			m.env = append(m.env, "CURL="+path)
		}
	}
	for name, script := range programs {
		m.write(t, filepath.Join("bin", name), "#!/bin/bash\n"+script+"\n", 0o700)
	}
	for n := range 4 {
		m.write(t, fmt.Sprintf("router-%d/pid", n), "", 0o600)
	}
	t.Cleanup(func() { m.kill(t) })
	for gpu := 1; gpu <= 9; gpu++ {
		for _, port := range []string{"8000", "30000"} {
			cfg := engine.ServerConfig{Models: []string{"m", "my-model", "chat", "qwen3-8b"}}
			if cfg.Ranks = 1; gpu == 7 {
				cfg.Ranks = 2
			}
			e, err := engine.NewServer(cfg)
			if err == nil {
				err = e.Start(m.addr(100+gpu) + ":" + port)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
		}
	}
	return m
}

func (m *machines) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// kill ends all routers.
func (m *machines) kill(t *testing.T) {
	for n := range 4 {
		m.end(t, n)
	}
	m.running = false
}

func (m *machines) end(t *testing.T, n int) {
	text, err := os.ReadFile(filepath.Join(m.host(n), "pid"))
	if err != nil {
		t.Error(err)
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return // never started
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	eventually(t, "the end of a router", func() bool {
		program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return program == ""
	})
	m.write(t, fmt.Sprintf("router-%d/pid", n), "", 0o600)
}

// fleet starts three routers that agree.
func (m *machines) fleet(t *testing.T) {
	t.Helper()
	if m.running {
		return
	}
	m.running = true
	key, _ := admin.NewGossipKey()
	founders := fmt.Sprintf("%s:7946, %s:7946, %s:7946", m.addr(11), m.addr(12), m.addr(13))
	var starts sync.WaitGroup
	for n := 1; n <= 3; n++ {
		dir := m.host(n)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"secret": fleetSecret, "gossip.key": key,
			"clients.yaml": "clients: [{name: search, key_sha256: " + strings.Repeat("ab", 32) + "}]\nanonymous: search\n",
			"grapevine.yaml": strings.NewReplacer("DIR", dir, "NAME", fmt.Sprintf("router-%d", n), "ADDR", m.addr(10+n), "FOUNDERS", founders, "GPU", m.addr(109)).Replace(
				"{node_name: NAME, listen: 'ADDR:8080', admin: 'ADDR:8081', gossip: 'ADDR:7946', secret_file: DIR/secret, gossip_key_file: DIR/gossip.key, data_dir: DIR/raft, founders: [FOUNDERS],\n" +
					"clients_file: DIR/clients.yaml, access_log: all, access_log_file: DIR/access.log, log_format: json, drain_grace: 0s, drain_close: 0s, backends: ['http://GPU:8000']}\n"),
		} {
			m.write(t, fmt.Sprintf("router-%d/%s", n, name), text, 0o600)
		}
		starts.Go(func() {
			if out, err := m.run(t, n, m.dir, "-c", "systemctl start grapevine"); err != nil {
				t.Errorf("router-%d: %v\n%s", n, err, out)
			}
		})
	}
	starts.Wait()
	eventually(t, "a leader", func() bool {
		s, err := admin.NewClient(m.admin(1)).Raft(t.Context())
		return err == nil && s.Leader != ""
	})
}

// reset takes the traces of a section away.
func (m *machines) reset(t *testing.T) {
	t.Helper()
	if !m.running {
		return
	}
	c := admin.NewClient(m.admin(1)).Forced()
	eventually(t, "only the engine of the configuration", func() bool {
		list, err := c.CurrentBackends(t.Context())
		if err != nil {
			return false
		}
		var others []string
		for _, b := range list.Backends {
			if b.Name != m.addr(109)+":8000" {
				others = append(others, b.Name)
			}
		}
		if len(others) == 0 {
			return true
		}
		_, err = c.RemoveBackends(t.Context(), others)
		return err == nil
	})
	if _, err := c.ApplyRules(t.Context(), "rules: []\n", nil, false); err != nil {
		t.Error(err)
	}
}

// run runs bash at a router's machine and returns what it printed.
func (m *machines) run(t *testing.T, n int, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", args...)
	cmd.Dir = dir
	cmd.Env = append(slices.Clone(m.env), "HOST="+m.host(n), "GRAPEVINE_ADMIN="+m.admin(n), "GRAPEVINE_LISTEN="+m.addr(10+n)+":8080")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// TestRecipes runs the shell blocks of the documents in the order of the pages, as readers at the first of three routers type them. The
// commands and flags are this program's; addresses become those of loopback, and systemd's part is played by a script.
func TestRecipes(t *testing.T) {
	m := newMachines(t)
	for _, file := range []string{"README.md", "docs/operate.md"} {
		var section []block
		all := slices.DeleteFunc(blocks(t, file), func(b block) bool { return b.info != "sh" && b.info != "console" })
		for i, b := range all {
			section = append(section, b)
			if i+1 < len(all) && all[i+1].section == b.section {
				continue
			}
			t.Run(file+"/"+b.section, func(t *testing.T) {
				err := m.follow(t, section)
				// On a machine that stalls, the fleet may be without a leader for longer than a command waits.
				for trial := 0; trial < 2 && err != nil && strings.Contains(err.Error(), "leader"); trial++ {
					t.Log(err)
					err = m.follow(t, section)
				}
				if err != nil {
					t.Error(err)
				}
			})
			section = nil
		}
	}
}

// follow runs the blocks of one section as one script, in which each line has the number that it has in the document.
// The error names the line that failed, and has what was printed.
func (m *machines) follow(t *testing.T, section []block) error {
	t.Helper()
	r, b := recipes[section[0].section], section[0]
	var script strings.Builder
	script.WriteString(". ./before")
	lines := 1
	for _, b := range section {
		script.WriteString(strings.Repeat("\n", b.line-lines))
		lines = b.line
		for line := range strings.Lines(b.text) {
			if b.info == "console" {
				typed, ok := strings.CutPrefix(line, "$ ")
				if line = "\n"; ok {
					line = typed
				}
			}
			script.WriteString(line)
			lines++
		}
	}
	script.WriteString(". ./after\n")

	host := 1
	if strings.Contains(script.String(), "\ngrapevine serve ") {
		host = alone
	} else {
		m.fleet(t)
	}
	words := slices.Clone(r.replace)
	for gpu := 1; gpu <= 9; gpu++ {
		words = append(words, fmt.Sprintf("gpu%d:", gpu), m.addr(100+gpu)+":")
	}
	words = append(words, "10.0.0.11", m.addr(11), "/var/lib/grapevine", m.host(host), "localhost:8080", m.addr(10+host)+":8080", "127.0.0.1:8081", m.admin(host))
	reader := strings.NewReplacer(words...)

	dir := t.TempDir()
	file := filepath.Join(dir, filepath.Base(b.file))
	for name, text := range map[string]string{
		file:                         reader.Replace(script.String()),
		filepath.Join(dir, "before"): strings.NewReplacer(words[len(r.replace):]...).Replace(r.before) + "\n",
		filepath.Join(dir, "after"):  strings.NewReplacer(words[len(r.replace):]...).Replace(r.after) + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	saveYAML(t, b, dir)
	out, err := m.run(t, host, dir, "-c", `set -eEuo pipefail; trap 'echo "${BASH_SOURCE##*/}:$LINENO: $BASH_COMMAND" >&2' ERR; . "$0"`, file)
	at := fmt.Sprintf("%s:%d", b.file, b.line)
	if err != nil {
		if m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(filepath.Base(b.file)) + `(:\d+: .*)`).FindStringSubmatch(out); m != nil {
			at = b.file + m[1]
		}
		err = fmt.Errorf("%s: %w\n%s", at, err, out)
	} else if !strings.Contains(out, r.prints) {
		err = fmt.Errorf("%s: it does not print %q\n%s", at, r.prints, out)
	} else {
		t.Logf("%s", out)
	}
	switch {
	case err != nil || r.breaks:
		m.kill(t)
	case host == alone:
		m.end(t, alone)
	default:
		m.reset(t)
	}
	return err
}

// saveYAML gives the readers the rules that a section shows before its commands.
func saveYAML(t *testing.T, first block, dir string) {
	t.Helper()
	for _, b := range blocks(t, first.file) {
		if b.section == first.section && b.info == "yaml" && strings.HasPrefix(b.text, "rules:") {
			if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

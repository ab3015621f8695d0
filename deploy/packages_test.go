package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A package is installed and started with its own configuration, its router replaced while it serves, put behind systemd's socket, and
// purged, by the recipes of docs/operate.md. It starts nothing by itself, warns of missing engines only, and leaves nothing behind; a purge
// keeps files that the operator made, and names their directory.
func TestInstallAndPurge(t *testing.T) {
	dir := packages(t)
	m := boot(t, "install", "", filepath.Join(dir, "old")+":/packages")
	before := m.files()

	m.run("cp /packages/*.deb .")
	install, start, found := strings.Cut(recipe(t, "As a service"), "\nsudoedit /etc/grapevine/grapevine.yaml ")
	if !found {
		t.Fatal("docs/operate.md: the installation does not name the configuration")
	}
	m.run(install)
	if state, _ := m.try("systemctl is-active grapevine || systemctl is-enabled grapevine"); state != "inactive\ndisabled\n" {
		t.Errorf("after the installation: %q", state)
	}
	if out := m.run("grapevine --version; man -w grapevine || ls /usr/share/man/man1/grapevine.1.gz"); !strings.Contains(out, "1.0.0") {
		t.Errorf("%q", out)
	}
	if out, err := m.try("test -f /etc/grapevine/grapevine.yaml " + start + "systemctl is-active grapevine; systemctl reload grapevine; curl -sf http://127.0.0.1:8081/healthz"); err != nil {
		t.Fatalf("the first start: %v\n%s\n%s", err, out, m.status())
	}
	for line := range strings.Lines(m.run("journalctl -u grapevine -p warning -o cat")) {
		// The container may not raise its limit of open files above that of the machine that runs the test.
		if !strings.Contains(line, `"no backends: every request will be refused"`) && !strings.Contains(line, `"descriptors"`) {
			t.Errorf("a first start warns: %s", line)
		}
	}

	pid, replace := m.mainPID(), recipe(t, "Replace a running router")
	m.run("cp -a /etc/grapevine/grapevine.yaml . && echo 'strategyy: prefix' >>/etc/grapevine/grapevine.yaml")
	m.run(replace)
	eventually(t, "a replacement that fails", func() bool {
		return strings.Contains(m.run("journalctl -u grapevine -p err -o cat"), `"event":"replace_failed"`)
	})
	if m.mainPID() != pid {
		t.Error("a wrong configuration replaces the process")
	}
	m.run("cp -a grapevine.yaml /etc/grapevine/ && " + replace)
	eventually(t, "another main process", func() bool { return m.mainPID() != pid })
	eventually(t, "the end of the one before", func() bool { return !slices.Contains(strings.Fields(m.run("pidof grapevine")), pid) })
	m.run(recipe(t, "A router that is alone") + "systemctl is-active grapevine.socket grapevine; curl -sf http://127.0.0.1:8080/healthz")

	m.run("apt-get remove -y grapevine")
	if state, _ := m.try("systemctl is-active grapevine || true"); state != "inactive\n" {
		t.Errorf("after the removal: %q", state)
	}
	m.run("test -f /etc/grapevine/grapevine.yaml") // a removal keeps the configuration
	m.run("apt-get purge -y grapevine")
	if after := m.files(); !slices.Equal(before, after) {
		t.Errorf("install and purge change:\n%s", difference(before, after))
	}

	m.run("apt-get install -y /packages/grapevine_1.0.0_amd64.deb && echo 'clients: []' >/etc/grapevine/clients.yaml && systemctl start grapevine")
	out := m.run("apt-get purge -y grapevine")
	m.run("test -f /etc/grapevine/clients.yaml && test ! -e /etc/grapevine/grapevine.yaml")
	if !strings.Contains(out, "the purge keeps /etc/grapevine:") {
		t.Errorf("a purge does not say that it keeps the operator's file:\n%s", out)
	}
	m.run("rm -r /etc/grapevine")
	if after := m.files(); !slices.Equal(before, after) {
		t.Errorf("a purge while the router runs leaves:\n%s", difference(before, after))
	}
}

func difference(before, after []string) string {
	var b strings.Builder
	for _, line := range before {
		if !slices.Contains(after, line) {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			fmt.Fprintf(&b, "+ %s\n", line)
		}
	}
	return b.String()
}

// Three hosts, installed by docs/operate.md to the letter, change from one release to the next by its recipe, one after the other
// under traffic through HAProxy: the first by a restart, the others by a replacement of the running process. No request may fail, also while both releases are in the fleet, and no package restarts a router.
//
// On a machine that stalls, HAProxy may take live routers for dead; such a trial is repeated, up to three times.
func TestUpgradePackages(t *testing.T) {
	dir := packages(t)
	haproxy := tool(t, "haproxy")
	for trial := range 3 {
		stalled := true
		t.Run(fmt.Sprintf("trial %d", trial+1), func(t *testing.T) { stalled = upgradePackages(t, dir, haproxy) })
		if t.Failed() || !stalled {
			return
		}
	}
	t.Error("HAProxy took routers that ran for dead in every trial")
}

func upgradePackages(t *testing.T, dir, haproxy string) (stalled bool) {
	began := time.Now()
	lan(t)
	x := newExample(t)
	x.addr = strings.NewReplacer("/run/haproxy/admin.sock", x.stats, "maxconn 100000", "maxconn 1000")
	x.startEngines()

	var machines []*machine
	for i := range 3 {
		m := boot(t, fmt.Sprintf("router-%d", i+1), fmt.Sprintf("10.0.0.1%d", i+1), filepath.Join(dir, "old")+":/old", filepath.Join(dir, "new")+":/new")
		m.run("cp /old/*.deb /new/*.deb .")
		machines, x.nodes = append(machines, m), append(x.nodes, &service{name: m.name})
	}
	first := machines[0]
	t.Logf("three machines have booted after %.0f s", time.Since(began).Seconds())

	// Made once and copied to each host.
	secrets := t.TempDir()
	host(t, filepath.Join(filepath.Dir(x.program), "grapevine"), "keys", "generate", "--out", filepath.Join(secrets, "gossip.key"))
	if err := os.WriteFile(filepath.Join(secrets, "secret"), []byte(strings.Repeat("5ec2e7", 8)), 0o600); err != nil {
		t.Fatal(err)
	}

	install := recipe(t, "Start it")
	var started sync.WaitGroup
	for i, m := range machines {
		host(t, "cp", filepath.Join(secrets, "secret"), filepath.Join(secrets, "gossip.key"), filepath.Join(m.root, "root"))
		started.Go(func() {
			if out, err := m.try("mkdir -p /etc/systemd/system/grapevine.service.d\n" +
				"printf '[Service]\\nEnvironment=GRAPEVINE_RESPONSE_HEADERS=all\\n' >/etc/systemd/system/grapevine.service.d/30-test.conf\n" +
				strings.ReplaceAll(install, "router-N", fmt.Sprintf("router-%d", i+1))); err != nil {
				t.Errorf("%s: %v\n%s\n%s", m.name, err, out, m.status())
			}
		})
	}
	started.Wait()
	if t.Failed() {
		return false
	}
	t.Logf("installed by the recipe and started after %.0f s:\n%s", time.Since(began).Seconds(), first.run("grapevine nodes"))
	config := filepath.Join(x.dir, "haproxy.cfg")
	text, err := os.ReadFile("example/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(x.addr.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	x.startFront(haproxy, config)
	r := startTraffic(t, "10.0.0.1:80")
	r.moves(x, x.nodes...)

	roll := recipe(t, "Roll an upgrade")
	back := strings.ReplaceAll(strings.ReplaceAll(roll, "1.1.0", "1.0.0"), "apt install -y", "apt install -y --allow-downgrades")
	// The same, but the process is replaced while it serves.
	swap := strings.ReplaceAll(roll, "systemctl restart grapevine\n", recipe(t, "Replace a running router"))
	if swap == roll {
		t.Fatal("docs/operate.md: the upgrade does not restart the router")
	}
	type step struct {
		m            *machine
		script, want string
	}
	steps := []step{{first, roll, "1.1.0"}, {first, back, "1.0.0"}, {first, swap, "1.1.0"}, {machines[1], swap, "1.1.0"}, {machines[2], swap, "1.1.0"}}
	if os.Getenv("GRAPEVINE_DEPLOY") != "full" {
		steps = slices.Delete(steps, 1, 3)
	}
	restarts := 0
	mixed := regexp.MustCompile(`(?s)1\.0\.0.*1\.1\.0|1\.1\.0.*1\.0\.0`)
	for i, s := range steps {
		turn := time.Now()
		upgrade, restart, found := strings.Cut(s.script, "\ngrapevine serve --check-config")
		if !found {
			t.Fatal("docs/operate.md: the upgrade does not check the configuration")
		}
		pid := s.m.mainPID()
		if said := s.m.run(upgrade); !strings.Contains(said, "still runs") {
			t.Errorf("the package does not say that the router is to be restarted:\n%s", said)
		}
		if s.m.mainPID() != pid {
			t.Errorf("the package restarted the router of %s", s.m.name)
		}
		before := r.by(s.m.name)
		out := s.m.run("grapevine serve --check-config" + restart)
		if i == 0 && !mixed.MatchString(out) {
			t.Errorf("no fleet of both releases:\n%s", out)
		}
		eventually(t, "another main process", func() bool { return s.m.mainPID() != pid })
		if got := s.m.run("/proc/$(systemctl show -P MainPID grapevine)/exe --version"); !strings.Contains(got, s.want) {
			t.Errorf("%s runs %s, want %s", s.m.name, got, s.want)
		}
		if s.script != swap {
			restarts++
		}
		x.awaitState(&service{name: s.m.name}, "UP")
		r.moves(x, x.nodes...)
		t.Logf("%s: %s after %.0f s; %d answers meanwhile", s.m.name, s.want, time.Since(turn).Seconds(), r.by(s.m.name)-before)
	}
	for _, m := range machines {
		if failed := m.run("systemctl --failed --plain --no-legend; journalctl -u grapevine -p err -o cat"); failed != "" {
			t.Errorf("%s: %s", m.name, failed)
		}
	}
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%.0f s in all; answered: %v; sent again on a new connection: %d; failed: %d", time.Since(began).Seconds(), r.answered, r.again, len(r.failures))
	if len(r.failures) > 0 && x.deaths() > restarts {
		t.Logf("HAProxy saw %d routers die and not %d; %v", x.deaths(), restarts, r.failures)
		return true
	}
	for _, err := range r.failures {
		t.Error(err)
	}
	return false
}

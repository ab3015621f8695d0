package deploy_test

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
	"syscall"
	"testing"
	"time"
)

// packages returns the directory with the releases old and new, which make test-packages fills.
// The process is in network, mount and process namespaces of its own: addresses are free, and mounts and machines end with it.
func packages(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("GRAPEVINE_PACKAGES")
	if dir == "" {
		t.Skip("make test-packages runs it")
	}
	return dir
}

// host runs a command of this machine and returns its output.
func host(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := run(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// lan makes the network of the example fleet, with this process as the balancer, 10.0.0.1, and as four engines.
func lan(t *testing.T) {
	t.Helper()
	host(t, "ip", "link", "set", "lo", "up")
	host(t, "ip", "link", "add", "lan", "type", "bridge")
	for _, addr := range []string{"10.0.0.1/16", "10.0.1.1/16", "10.0.1.2/16", "10.0.1.3/16", "10.0.1.4/16"} {
		host(t, "ip", "address", "add", addr, "dev", "lan")
	}
	host(t, "ip", "link", "set", "lan", "up")
	t.Cleanup(func() { host(t, "ip", "link", "del", "lan") })
}

// machine is a container of systemd-nspawn in which systemd is process 1. Its root is a layer in memory over GRAPEVINE_BASE, a Debian
// without grapevine.
type machine struct {
	t      *testing.T
	name   string
	root   string
	leader string // the process id of its systemd
}

// boot starts a machine with an address of the lan, or without a network, and waits until systemd has started all units. The
// directories of binds ("from:to") are read-only in it.
func boot(t *testing.T, name, addr string, binds ...string) *machine {
	t.Helper()
	layers := t.TempDir()
	host(t, "mount", "-t", "tmpfs", "tmpfs", layers)
	m := &machine{t: t, name: name, root: filepath.Join(layers, "root")}
	for _, d := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(layers, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host(t, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", os.Getenv("GRAPEVINE_BASE"), layers, layers), m.root)
	args := []string{"--quiet", "--boot", "--register=no", "--keep-unit", "--console=pipe", "--directory=" + m.root, "--machine=" + name}
	if addr != "" {
		args = append(args, "--network-bridge=lan")
	} else {
		args = append(args, "--private-network")
	}
	for _, b := range binds {
		args = append(args, "--bind-ro="+b)
	}
	groups := ownGroups(t, name)
	cmd := exec.Command("/bin/sh", append([]string{"-ec", `for g in ` + strings.Join(groups, " ") + `; do echo $$ >$g/cgroup.procs; done; exec systemd-nspawn "$@"`, "sh"}, args...)...)
	var console bytes.Buffer // read after its end only
	cmd.Stdout, cmd.Stderr = &console, &console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.leader != "" { // the end of process 1 is the end of all
			pid, _ := strconv.Atoi(m.leader)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		} else {
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the console of %s:\n%s", name, console.Bytes())
		}
		host(t, "umount", "-R", layers)
	})
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	eventually(t, name+" starts systemd", func() bool {
		pids, err := os.ReadFile(children)
		if err != nil {
			t.Fatalf("systemd-nspawn is gone: %v", err)
		}
		for _, pid := range strings.Fields(string(pids)) {
			if program, _ := os.Readlink("/proc/" + pid + "/exe"); filepath.Base(program) == "systemd" {
				m.leader = pid
			}
		}
		return m.leader != ""
	})
	eventually(t, name+" has booted", func() bool {
		state, _ := m.try("systemctl is-system-running")
		return slices.Contains([]string{"running", "degraded"}, strings.TrimSpace(state))
	})
	if addr != "" {
		host(t, "nsenter", "-t", m.leader, "-n", "ip", "link", "set", "host0", "up")
		host(t, "nsenter", "-t", m.leader, "-n", "ip", "address", "add", addr+"/16", "dev", "host0")
	}
	return m
}

// ownGroups makes a control group in each hierarchy, since the systemd of a machine takes its own for the root of all.
func ownGroups(t *testing.T, name string) (dirs []string) {
	t.Helper()
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil || len(hierarchies) == 0 || !strings.Contains(strings.Join(hierarchies, " "), "/systemd/") {
		hierarchies = []string{"/sys/fs/cgroup/cgroup.procs"} // version 2 only
	}
	// systemd-nspawn makes a group of version 2 in the hierarchy of systemd, too: the names are equal.
	group := fmt.Sprintf("grapevine-test-%s-%x", name, time.Now().UnixNano())
	for _, h := range hierarchies {
		if strings.Contains(h, "cpuset") { // without processors of its own it takes none
			continue
		}
		dir := filepath.Join(filepath.Dir(h), group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	t.Cleanup(func() {
		for _, dir := range dirs {
			eventually(t, dir+" is empty", func() bool { return exec.Command("find", dir, "-depth", "-type", "d", "-delete").Run() == nil })
		}
	})
	return dirs
}

// try runs a script in the machine as root, for two minutes at most.
func (m *machine) try(script string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "-t", m.leader, "-m", "-u", "-i", "-n", "-p", "-w", "/bin/sh", "-c", "cd /root && set -e\n"+script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err = cmd.Run()
	return both.String(), err
}

func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s\n-> %s", m.name, err, script, out)
	}
	return out
}

// status is what systemd and the router say of the service.
func (m *machine) status() string {
	out, _ := m.try("systemctl status grapevine --no-pager -n 30 || true")
	return out
}

// mainPID is the process id of the router, as systemd knows it.
func (m *machine) mainPID() string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl show -P MainPID grapevine"))
}

// files lists what is in the machine, without what the kernel, a running system or package tools write anywhere: path, type,
// owner and mode.
func (m *machine) files() []string {
	m.t.Helper()
	out := m.run(`find / -xdev \( -path /root -o -path /tmp -o -path /run -o -path /var/log -o -path /var/cache -o -path /var/backups \
		-o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/tmp -o -path '/etc/*-' -o -path /etc/.pwd.lock \) -prune -o -printf '%p %y %u:%g %m\n'; cat /etc/passwd /etc/group; systemctl --failed --plain --no-legend`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return lines
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// onMachines lists the sections whose commands, in a block "sh machine", the tests of booted machines run. TestRecipes of cmd/grapevine
// runs the other commands of the documents.
var onMachines = map[string]string{
	"In five minutes":          "../README.md",
	"As a service":             "../docs/operate.md",
	"Replace a running router": "../docs/operate.md",
	"A router that is alone":   "../docs/operate.md",
	"Start it":                 "../docs/operate.md",
	"Roll an upgrade":          "../docs/operate.md",
}

var machineBlock = regexp.MustCompile("(?s)\n```sh machine\n(.*?)```")

// recipe returns the commands of a section of a document, which are run as root and not asked whether they mean it.
func recipe(t *testing.T, heading string) string {
	t.Helper()
	file := onMachines[heading]
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "# "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n#")
	var commands strings.Builder
	for _, block := range machineBlock.FindAllStringSubmatch(section, -1) {
		commands.WriteString(block[1])
	}
	if commands.Len() == 0 {
		t.Fatalf("%s: %q has no block \"sh machine\"", file, heading)
	}
	return strings.NewReplacer("sudo ", "", "apt install", "apt install -y").Replace(commands.String())
}

// No block is marked for machines that no machine runs.
func TestRecipesForMachines(t *testing.T) {
	runs := 0
	for heading := range onMachines {
		runs += strings.Count(recipe(t, heading), "\n")
	}
	marked := 0
	for _, file := range []string{"../README.md", "../docs/operate.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range machineBlock.FindAllStringSubmatch(string(text), -1) {
			marked += strings.Count(block[1], "\n")
		}
	}
	if marked != runs {
		t.Errorf("%d lines are marked \"sh machine\", and machines run %d", marked, runs)
	}
}

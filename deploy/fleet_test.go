package deploy_test

import (
	"encoding/csv"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

type example struct {
	t       *testing.T
	program string
	dir     string
	addr    *strings.Replacer
	front   string
	stats   string
	nodes   []*service
}

type service struct {
	name    string
	command []string
	env     []string
	notify  *net.UnixConn
	log     string
	cmd     *exec.Cmd
}

func freePort(t *testing.T, ip string) string {
	t.Helper()
	ln, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func newExample(t *testing.T) *example {
	t.Helper()
	program := os.Getenv("GRAPEVINE")
	if program == "" {
		t.Fatal("GRAPEVINE names no program: make test-deploy does")
	}
	x := &example{t: t, program: program, dir: t.TempDir(), front: freePort(t, "127.77.0.10")}
	x.stats = filepath.Join(x.dir, "haproxy.sock")
	pairs := []string{"bind :80\n", "bind " + x.front + "\n", "/run/haproxy/admin.sock", x.stats,
		"maxconn 100000", "maxconn 1000"}
	if os.Geteuid() != 0 {
		pairs = append(pairs, "user haproxy", "", "group haproxy", "")
	}
	for i := 1; i <= 3; i++ {
		pairs = append(pairs, fmt.Sprintf("10.0.0.1%d:8080", i), freePort(t, fmt.Sprintf("127.77.0.1%d", i)),
			fmt.Sprintf("10.0.0.1%d:8082", i), freePort(t, fmt.Sprintf("127.77.0.1%d", i)),
			fmt.Sprintf("10.0.0.1%d:7946", i), freePort(t, fmt.Sprintf("127.77.0.1%d", i)))
	}
	for i := 1; i <= 4; i++ {
		pairs = append(pairs, fmt.Sprintf("10.0.1.%d:8000", i), freePort(t, fmt.Sprintf("127.77.1.%d", i)))
	}
	x.addr = strings.NewReplacer(pairs...)
	return x
}

func (x *example) file(name, to string, more ...string) string {
	x.t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		x.t.Fatal(err)
	}
	out := strings.NewReplacer(more...).Replace(x.addr.Replace(string(text)))
	if strings.Contains(out, "10.0.") {
		x.t.Fatalf("%s: an address that is not ours is left:\n%s", name, out)
	}
	to = filepath.Join(x.dir, to)
	if err := os.WriteFile(to, []byte(out), 0o600); err != nil {
		x.t.Fatal(err)
	}
	return to
}

func (x *example) start(log string, env []string, command ...string) *exec.Cmd {
	x.t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		x.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.CommandContext(x.t.Context(), command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, env
	if err := cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	return cmd
}

func (x *example) startEngines() {
	x.t.Helper()
	lab := filepath.Join(filepath.Dir(x.program), "grapevine-lab")
	for i := 1; i <= 4; i++ {
		addr := x.addr.Replace(fmt.Sprintf("10.0.1.%d:8000", i))
		cmd := x.start(filepath.Join(x.dir, fmt.Sprintf("engine-%d.log", i)), os.Environ(), lab, "engine", "--listen", addr)
		x.t.Cleanup(func() { _ = cmd.Wait() })
		x.eventually("engine "+addr, func() bool {
			resp, err := http.Get("http://" + addr + "/v1/models")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
}

func (x *example) startNodes() {
	x.t.Helper()
	secret, key := filepath.Join(x.dir, "secret"), filepath.Join(x.dir, "gossip.key")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5ec2e7", 8)), 0o600); err != nil {
		x.t.Fatal(err)
	}
	if out, err := run(x.t, x.program, "keys", "generate", "--out", key); err != nil {
		x.t.Fatal(out)
	}
	keyText, err := os.ReadFile(key)
	if err != nil {
		x.t.Fatal(err)
	}
	hosts, common := examples(x.t)
	for i, host := range hosts {
		name := filepath.Base(filepath.Dir(host))
		u := readUnit(x.t, unitFile, x.file(host, name+".conf"), common)
		state := filepath.Join(x.dir, name)
		if err := os.Mkdir(state, 0o700); err != nil {
			x.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, "gossip.key"), keyText, 0o600); err != nil {
			x.t.Fatal(err)
		}
		if err := os.Link(secret, filepath.Join(state, "secret")); err != nil {
			x.t.Fatal(err)
		}
		config := x.file("example/grapevine.yaml", name+".yaml", "/var/lib/grapevine", state, "127.0.0.1:8081", freePort(x.t, fmt.Sprintf("127.77.0.1%d", i+1)))
		socket := filepath.Join(state, "notify")
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			x.t.Fatal(err)
		}
		x.t.Cleanup(func() { conn.Close() })
		n := &service{
			name: name, notify: conn, log: filepath.Join(x.dir, name+".log"),
			command: strings.Fields(strings.NewReplacer("/usr/bin/grapevine", x.program, "/etc/grapevine/grapevine.yaml", config).Replace(u.last(x.t, "Service.ExecStart"))),
			// As from systemd: without this process's environment.
			env: append(u["Service.Environment"], "PATH=/usr/bin:/bin", "GRAPEVINE_RESPONSE_HEADERS=all", "NOTIFY_SOCKET="+socket,
				"WATCHDOG_USEC="+strconv.FormatInt(u.duration(x.t, "Service.WatchdogSec").Microseconds(), 10)),
		}
		x.nodes = append(x.nodes, n)
		n.cmd = x.start(n.log, n.env, n.command...)
	}
	x.t.Cleanup(func() {
		for _, n := range x.nodes {
			_ = n.cmd.Wait()
			if x.t.Failed() {
				text, _ := os.ReadFile(n.log)
				x.t.Logf("%s:\n%s", n.name, text)
			}
		}
	})
	for i, n := range x.nodes {
		x.await(n, "READY=1")
		x.await(n, "WATCHDOG=1")
		addr := x.addr.Replace(fmt.Sprintf("10.0.0.1%d:8082", i+1))
		x.eventually("the metrics of "+n.name, func() bool {
			resp, err := http.Get("http://" + addr + "/metrics")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
}

func (x *example) await(n *service, want string) {
	x.t.Helper()
	if err := n.notify.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		x.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		size, err := n.notify.Read(buf)
		if err != nil {
			x.t.Fatalf("%s did not say %s: %v", n.name, want, err)
		}
		if strings.Contains(string(buf[:size]), want) {
			return
		}
	}
}

// stop is systemctl stop: SIGTERM, after which the process must exit by itself.
func (x *example) stop(n *service) {
	x.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		x.t.Fatal(err)
	}
	x.await(n, "STOPPING=1")
	ended := make(chan error, 1)
	go func() { ended <- n.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			x.t.Errorf("%s ended with %v", n.name, err)
		}
	case <-time.After(2 * time.Minute):
		x.t.Fatalf("%s does not end", n.name)
	}
}

func (x *example) again(n *service) {
	x.t.Helper()
	n.cmd = x.start(n.log, n.env, n.command...)
	x.await(n, "READY=1")
}

func (x *example) startFront(haproxy, config string) {
	x.t.Helper()
	log := x.frontLog()
	cmd := x.start(log, os.Environ(), haproxy, "-db", "-f", config)
	x.t.Cleanup(func() {
		_ = cmd.Wait()
		if x.t.Failed() {
			text, _ := os.ReadFile(log)
			x.t.Logf("haproxy:\n%s", text)
		}
	})
	for _, n := range x.nodes {
		x.awaitState(n, "UP")
	}
}

func (x *example) frontLog() string { return filepath.Join(x.dir, "haproxy.log") }

func (x *example) deaths() int {
	x.t.Helper()
	text, err := os.ReadFile(x.frontLog())
	if err != nil {
		x.t.Fatal(err)
	}
	return strings.Count(string(text), " is DOWN")
}

func (x *example) awaitState(n *service, want string) {
	x.t.Helper()
	x.eventually("HAProxy says that "+n.name+" is "+want, func() bool {
		c, err := net.Dial("unix", x.stats)
		if err != nil {
			return false
		}
		defer c.Close()
		if _, err := c.Write([]byte("show stat\n")); err != nil {
			return false
		}
		rows := csv.NewReader(c)
		rows.FieldsPerRecord = -1
		table, err := rows.ReadAll()
		if err != nil || len(table) == 0 {
			return false
		}
		server, status := slices.Index(table[0], "svname"), slices.Index(table[0], "status")
		for _, row := range table[1:] {
			if server >= 0 && status >= 0 && len(row) > max(server, status) && row[server] == n.name {
				return row[status] == want
			}
		}
		return false
	})
}

func (x *example) eventually(what string, ok func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("not within a minute: %s", what)
		}
	}
}

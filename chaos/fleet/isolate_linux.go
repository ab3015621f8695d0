package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// isolatedEnv tells a process that it was started by Isolate, and in which network its parent is.
const isolatedEnv = "GRAPEVINE_CHAOS_ISOLATED_FROM"

// ownNetwork names the network namespace of this process.
func ownNetwork() (string, error) { return os.Readlink("/proc/self/ns/net") }

// Isolate prepares cmd to run in an empty network namespace of its own, as root of its own where the caller is not root. Nothing that it
// does to its network touches this machine's. It is an error where the kernel, or its administrator, does not allow that, or the
// program ip is missing; the error of starting cmd can be the same. The kernel ends the process with the thread that starts it: the caller
// locks its thread until it has waited for the process, or a fleet in this process may take that thread with it when it is closed.
func Isolate(cmd *exec.Cmd) error {
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("fleet: network namespaces need the program ip (package iproute2): %w", err)
	}
	here, err := ownNetwork()
	if err != nil {
		return fmt.Errorf("fleet: no network namespaces: %w", err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, isolatedEnv+"="+here)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return nil
}

// Isolated says whether this process was started by Isolate and is in a network of its own.
func Isolated() bool {
	from := os.Getenv(isolatedEnv)
	here, err := ownNetwork()
	return err == nil && from != "" && from != here
}

// raiseLoopback makes 127.0.0.0/8 work in a process that Isolate started, whose network is empty; elsewhere it does.
func raiseLoopback() error {
	if !Isolated() {
		return nil
	}
	return ip("link set lo up\n")
}

// network is the inside of an isolated process: this process's namespace is a router (the hub), every node has a namespace of its own
// that is joined to the hub alone, and engines and balancer are on the hub. Links between nodes are cut by rules of the hub's
// routing that lose the packets.
type network struct {
	nodes int

	mu    sync.Mutex
	links []string // the hub's ends
	cuts  []string // rules in force
}

// subnet holds the addresses: the hub itself is the first, member m is 10 + m.
var subnet = [3]byte{10, 77, 0}

func hostOf(last int) string {
	return netip.AddrFrom4([4]byte{subnet[0], subnet[1], subnet[2], byte(last)}).String()
}

func memberHost(m int) string { return hostOf(10 + m) }

// errNotIsolated protects the machine: without a namespace of its own this would configure everybody's network.
var errNotIsolated = errors.New("fleet: this process was not started by Isolate")

// newNetwork makes the hub. The first so many members are nodes, the others live on the hub.
func newNetwork(nodes, members int) (*network, error) {
	if !Isolated() {
		return nil, errNotIsolated
	}
	if members > maxMembers {
		return nil, fmt.Errorf("fleet: %d members, want at most %d", members, maxMembers)
	}
	script := "link set lo up\naddr replace " + hostOf(1) + "/32 dev lo\n"
	for m := nodes; m < members; m++ {
		script += "addr replace " + memberHost(m) + "/32 dev lo\n"
	}
	if err := ip(script); err != nil {
		return nil, err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return nil, fmt.Errorf("fleet: forwarding between namespaces: %w", err)
	}
	return &network{nodes: nodes}, nil
}

// ip runs a batch of commands of the program ip in the namespace of the calling thread.
func ip(script string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("fleet: ip: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// attach makes the namespace of a node and returns a thread in it. The namespace ends with the thread and the processes that the thread
// started, and the link with the namespace.
func (n *network) attach(m int) (*thread, error) {
	var tid int
	t, err := newThread(func() error {
		tid = unix.Gettid()
		return unix.Unshare(unix.CLONE_NEWNET)
	})
	if err != nil {
		return nil, fmt.Errorf("fleet: network namespace: %w", err)
	}
	link := "node" + strconv.Itoa(m)
	err = ip(fmt.Sprintf("link add %s type veth peer name eth0 netns /proc/%d/task/%d/ns/net\nlink set %s up\nroute add %s/32 dev %s\n",
		link, os.Getpid(), tid, link, memberHost(m), link))
	if err == nil {
		err = t.do(func() error {
			return ip(fmt.Sprintf("link set lo up\naddr add %s/32 dev eth0\nlink set eth0 up\nroute add %s dev eth0\nroute add default via %s src %s\n",
				memberHost(m), hostOf(1), hostOf(1), memberHost(m)))
		})
	}
	if err != nil {
		t.close()
		return nil, err
	}
	n.mu.Lock()
	n.links = append(n.links, link)
	n.mu.Unlock()
	return t, nil
}

// cut loses all packets between the members of a and those of b from now on.
func (n *network) cut(a, b []int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var script strings.Builder
	var rules []string
	for _, x := range a {
		for _, y := range b {
			for _, pair := range [2][2]int{{x, y}, {y, x}} {
				rule := fmt.Sprintf("pref 100 from %s to %s blackhole", memberHost(pair[0]), memberHost(pair[1]))
				rules = append(rules, rule)
				fmt.Fprintf(&script, "rule add %s\n", rule)
			}
		}
	}
	if err := ip(script.String()); err != nil {
		return err
	}
	n.cuts = append(n.cuts, rules...)
	return nil
}

func (n *network) heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var script strings.Builder
	for _, rule := range n.cuts {
		fmt.Fprintf(&script, "rule del %s\n", rule)
	}
	if err := ip(script.String()); err != nil {
		return err
	}
	n.cuts = nil
	return nil
}

func (n *network) of(member int, s service) string {
	return net.JoinHostPort(memberHost(member), strconv.Itoa(servicePort+int(s)))
}

// Close takes down rules and links. The links would go with the namespaces, but some time later, when the next network may want their
// names.
func (n *network) Close() error {
	err := n.heal()
	n.mu.Lock()
	defer n.mu.Unlock()
	var script strings.Builder
	for _, link := range n.links {
		fmt.Fprintf(&script, "link del %s\n", link)
	}
	n.links = nil
	return errors.Join(err, ip(script.String()))
}

package raftstore

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// childVariable holds a childConfig and makes the test binary a node.
const childVariable = "GRAPEVINE_RAFTSTORE_CHILD"

type childConfig struct {
	Dir   string   `json:"dir"`
	Addr  string   `json:"addr"`
	Peers []string `json:"peers"`
}

// childMain prints acknowledged names. Input "quiet" ends the writes, "read" prints what the node
// reads.
func childMain(config string) {
	if err := child(config); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func child(config string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ln, err := listenPlain(c.Addr)
	if err != nil {
		return err
	}
	s, err := Open(Config{
		Dir: c.Dir, Streams: ln, Founders: append(c.Peers, c.Addr), Server: true, Timers: quickTimers(),
		Peers: func() []Peer {
			var list []Peer
			for _, addr := range c.Peers {
				list = append(list, Peer{Addr: addr, Server: true, Alive: true})
			}
			return list
		},
	})
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	orders := make(chan string)
	go func() {
		defer close(orders)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			orders <- lines.Text()
		}
	}()
	write(s, orders)
	fmt.Println("quiet")
	for range orders {
		if err := printAll(s); err != nil {
			return err
		}
	}
	return s.Stop(context.Background())
}

func write(s *Store, orders <-chan string) {
	apply := func(cmd Command) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := s.Apply(ctx, cmd)
		return err
	}
	var kept []string
	for n := 0; ; n++ {
		select {
		case <-orders:
			return
		default:
		}
		name := fmt.Sprintf("%s-%d-%d", s.ID(), os.Getpid(), n)
		if apply(add(name)) == nil {
			fmt.Println("ack", name)
			kept = append(kept, name)
		}
		if len(kept) > 50 {
			fmt.Println("gone", kept[0]) // or not: no later output mentions it
			_ = apply(RemoveBackends{kept[:1]})
			kept = kept[1:]
		}
		time.Sleep(2 * time.Millisecond) // leaves the processors to other nodes
	}
}

func printAll(s *Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	st, err := s.Read(ctx)
	if err != nil {
		return err
	}
	for _, b := range st.Backends {
		fmt.Println("has", b.Name)
	}
	fmt.Println("end")
	return nil
}

type process struct {
	config childConfig
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	done   chan struct{}

	mu       sync.Mutex
	writes   int             // acknowledged, over all its lives
	acked    map[string]bool // those that must still exist
	has      map[string]bool
	quiet    bool
	complete bool
	problem  string
}

func (p *process) start(t *testing.T) {
	t.Helper()
	config, err := json.Marshal(p.config)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(config))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin, p.done = in, make(chan struct{})
	p.has, p.quiet, p.complete = make(map[string]bool), false, false
	go p.listen(out)
}

func (p *process) listen(out io.Reader) {
	defer close(p.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		what, rest, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		switch what {
		case "ack":
			p.writes++
			p.acked[rest] = true
		case "gone":
			delete(p.acked, rest)
		case "has":
			p.has[rest] = true
		case "quiet":
			p.quiet = true
		case "end":
			p.complete = true
		default:
			p.problem = lines.Text()
		}
		p.mu.Unlock()
	}
}

func (p *process) acks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
	p.cmd.Wait()
}

// Every acknowledged write survives SIGKILL of nodes. It runs beside no other test: until a child runs its program, it holds this
// process's locks on other tests' data files.
func TestKilledProcesses(t *testing.T) {
	rounds := 2
	if chaotic() {
		rounds = 30
	}
	addrs := make([]string, 3)
	for i := range addrs {
		ln, err := net.Listen("tcp", host()+":0")
		if err != nil {
			t.Fatal(err)
		}
		addrs[i] = ln.Addr().String()
		ln.Close()
	}
	var all []*process
	for i, addr := range addrs {
		var peers []string
		for j, other := range addrs {
			if j != i {
				peers = append(peers, other)
			}
		}
		p := &process{config: childConfig{Dir: t.TempDir(), Addr: addr, Peers: peers}, acked: map[string]bool{}}
		p.start(t)
		t.Cleanup(func() { p.kill() })
		all = append(all, p)
	}
	progress := func(what string, some ...*process) {
		t.Helper()
		for _, p := range some {
			before := p.acks()
			until(t, what, func() bool { return p.acks() > before+3 })
		}
	}
	progress("first writes", all...)
	r := seeded(t)
	for range rounds {
		victim := r.IntN(3)
		all[victim].kill()
		progress("writes of the survivors", all[(victim+1)%3], all[(victim+2)%3])
		all[victim].start(t)
		progress("writes of the one that came back", all[victim])
	}
	for _, p := range all {
		p.kill()
	}
	for _, p := range all {
		p.start(t)
	}
	progress("writes after all were killed", all...)
	for _, p := range all {
		p.order(t, "quiet", &p.quiet)
	}
	acked, writes := make(map[string]bool), 0
	for _, p := range all {
		p.order(t, "read", &p.complete)
		maps.Copy(acked, p.acked)
		writes += p.writes
	}
	for i, p := range all {
		for name := range acked {
			if !p.has[name] {
				t.Errorf("acknowledged write %s is lost to process %d", name, i)
			}
		}
		p.stdin.Close()
		<-p.done
	}
	t.Logf("%d acknowledged writes, %d of them to be found, %d kills", writes, len(acked), rounds+len(all))
}

func (p *process) order(t *testing.T, order string, done *bool) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, order+"\n"); err != nil {
		t.Fatal(err)
	}
	until(t, order, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return *done || p.problem != ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.problem != "" {
		t.Fatal(p.problem)
	}
}

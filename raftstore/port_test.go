package raftstore

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// Malformed input ends a connection and leaves the node working.
func TestNonsenseOnThePort(t *testing.T) {
	t.Parallel()
	f := newRealFleet(t, 1, nil).start()
	n := f.nodes[0]
	s := n.store.Load()
	apply(t, s, add("one"))
	request := func(body string) string {
		return string(hello{Use: useRequests, ID: "x", Addr: "h:1"}.frame()) + body
	}
	raftHello := func(group groupID, to string) string {
		return string(hello{Use: useRaft, Group: group, To: to, ID: "x", Addr: "h:1"}.frame())
	}
	for name, c := range map[string]struct{ say, want string }{
		"nothing":              {"", ""},
		"http":                 {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"a long hello":         {"\x01\x00\x00\xff\xff", ""},
		"another format":       {"\x09\x00\x00\x00\x01R", ""},
		"half a hello":         {"\x01\x00\x00\x00\x20Rabc", ""},
		"a huge frame":         {request("\x01\xff\xff\xff\xff"), ""},
		"an unknown kind":      {request("\x63\x00\x00\x00\x00"), "unknown kind 99"},
		"an empty command":     {request("\x02\x00\x00\x00\x02\x90\x4e"), "cut short"},
		"a newer command":      {request("\x02\x00\x00\x00\x04\x90\x4e\x09\x01"), "unknown version: format 9"},
		"no budget":            {request("\x02\x00\x00\x00\x00"), "cut short"},
		"json":                 {request("\x06\x00\x00\x00\x01{"), "unexpected end"},
		"raft of another":      {raftHello(s.group(), "other"), "this is node " + s.ID()},
		"raft of no group":     {raftHello(groupID{}, s.ID()), "another group"},
		"raft of another one":  {raftHello(groupID{1}, s.ID()), "another group"},
		"raft, then nonsense":  {raftHello(s.group(), s.ID()) + "\xff\xff\xff", "\x00"},
		"raft, then bad rpc":   {raftHello(s.group(), s.ID()) + "\x00\xc1\xc1\xc1", "\x00"},
		"a join without group": {request(string(rune(askJoin)) + "\x00\x00\x00\x02{}"), "names no group"},
	} {
		conn, err := net.Dial("tcp", n.addr())
		if err != nil {
			t.Fatal(err)
		}
		// Writes fail if the node has closed the connection.
		io.WriteString(conn, c.say)
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(conn)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("%s: the connection stays", name)
		}
		if !strings.Contains(string(got), c.want) {
			t.Errorf("%s: answer is %q", name, got)
		}
		conn.Close()
	}
	apply(t, s, add("two"))
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	dir, three := t.TempDir(), []string{"a:1", "b:1", "c:1"}
	for _, c := range []struct {
		cfg  Config
		text string
	}{
		{Config{Voters: 4}, "voters: 4"},
		{Config{Dir: dir, Founders: three[:2], Server: true}, "founders: 2 are not"},
		{Config{Founders: three, Server: true}, "data directory"},
		{Config{Dir: dir, Founders: three}, "may not vote"},
		{Config{Dir: dir, Founders: three, Server: true}, "needs streams"},
		{Config{Join: true}, "needs streams"},
		{Config{Constants: Constants{KeyID: 1}}, "block_bytes"},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			s.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: error is %v, want %q in it", c.cfg, err, c.text)
		}
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", t.TempDir()} {
		s, err := Open(Config{Dir: dir, Server: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Apply(t.Context(), add("a")); err == nil {
			t.Error("a store that was not started takes commands")
		}
		if st := s.Status(); st.Role != "stopped" || s.State() == nil {
			t.Errorf("status before the start is %+v", st)
		}
		for range 2 {
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := s.Start(t.Context()); err == nil {
			t.Error("a stopped store starts")
		}
	}
	s, err := Open(Config{Timers: quickTimers()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a store starts twice")
	}
	changed := s.Changed()
	apply(t, s, add("a"))
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("Changed does not close")
	}
	s.Poke()
	s.Poke()
	for range 2 {
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if !has(s.State(), "a") {
		t.Error("a stopped store forgets")
	}
}

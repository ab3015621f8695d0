package raftstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for nodes of one fleet.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

// config is mutual TLS for a node at the address.
func (a authority) config(t *testing.T, addr string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hostname, _, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: addr}, IPAddresses: []net.IP{net.ParseIP(hostname)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// A group over mutual TLS works like any other, and a node of another authority
// is not heard.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	f := newRealFleet(t, 3, nil)
	for _, n := range f.nodes {
		n.edit = func(c *Config) { c.TLS = ours.config(t, n.addr()) }
	}
	f.start()
	for _, s := range f.running() {
		apply(t, s, add("by-"+s.ID()))
	}
	stranger := f.add("stranger", nil)
	stranger.edit = func(c *Config) { c.Expect, c.Join, c.TLS = 0, true, theirs.config(t, stranger.addr()) }
	s := stranger.start()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := s.askInfo(ctx, f.nodes[0].addr()); err == nil {
		t.Error("a node of another authority gets an answer")
	}
	if _, err := f.nodes[0].store.Load().askInfo(ctx, stranger.addr()); err == nil {
		t.Error("a node of another authority gives an answer")
	}
	if got := len(f.leader().store.Load().Status().Servers); got != 3 {
		t.Errorf("%d servers", got)
	}
	leader := f.leader()
	leader.kill()
	apply(t, f.running()[0], add("after"))
}

// Whoever says nothing, nonsense, or too much on the port is shown out, and the
// node goes on.
func TestNonsenseOnThePort(t *testing.T) {
	t.Parallel()
	f := newRealFleet(t, 1, nil).start()
	n := f.nodes[0]
	s := n.store.Load()
	apply(t, s, add("one"))
	request := func(body string) string {
		return string(hello{use: useRequests, id: "x", addr: "h:1"}.encode()) + body
	}
	raftHello := func(group groupID, to string) string {
		return string(hello{use: useRaft, group: group, to: to, id: "x", addr: "h:1"}.encode())
	}
	for name, c := range map[string]struct{ say, want string }{
		"nothing":              {"", ""},
		"http":                 {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"a long hello":         {"Q\x01\xff\xff", ""},
		"another format":       {"R\x02\x00\x00", ""},
		"half a hello":         {"R\x01\x00\x20abc", ""},
		"a huge frame":         {request("\x01\xff\xff\xff\xff"), ""},
		"an unknown kind":      {request("\x63\x00\x00\x00\x00"), "unknown kind 99"},
		"an empty command":     {request("\x02\x00\x00\x00\x02\x90\x4e"), "cut short"},
		"a newer command":      {request("\x02\x00\x00\x00\x04\x90\x4e\x09\x01"), "unknown version: format 9"},
		"no budget":            {request("\x02\x00\x00\x00\x00"), "cut short"},
		"json":                 {request("\x06\x00\x00\x00\x01{"), "unexpected end"},
		"raft of another":      {raftHello(s.group(), "nobody"), "here is " + s.ID()},
		"raft of no group":     {raftHello(groupID{}, s.ID()), "another group"},
		"raft of another one":  {raftHello(groupID{1}, s.ID()), "another group"},
		"raft, then nonsense":  {raftHello(s.group(), s.ID()) + "\xff\xff\xff", "\x00"},
		"raft, then bad rpc":   {raftHello(s.group(), s.ID()) + "\x00\xc1\xc1\xc1", "\x00"},
		"a join without group": {request("\x07\x00\x00\x00\x02{}"), "names no group"},
	} {
		conn, err := net.Dial("tcp", n.addr())
		if err != nil {
			t.Fatal(err)
		}
		// Both fail if the node has shown us out already.
		io.WriteString(conn, c.say)
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(conn)
		// A reset is an end as well.
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

// What a configuration lacks is said when the store is opened.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	listen := func(addr string) net.Listener {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	dir := t.TempDir()
	for _, c := range []struct {
		cfg  Config
		text string
	}{
		{Config{Voters: 4}, "voters: 4"},
		{Config{Dir: dir, Expect: 2, Server: true}, "expect: 2 is even"},
		{Config{Dir: dir, Expect: 99, Server: true}, "expect: 99"},
		{Config{Expect: 3, Server: true}, "data directory"},
		{Config{Dir: dir, Expect: 3}, "may not vote"},
		{Config{Dir: dir, Expect: 3, Server: true}, "needs a listener"},
		{Config{Join: true}, "needs a listener"},
		{Config{Listener: listen("0.0.0.0:0")}, "nobody can dial"},
		{Config{Listener: listen("0.0.0.0:0"), Advertise: "127.0.0.1:1"}, "only listen on loopback"},
		{Config{Listener: listen("127.0.0.1:0"), Advertise: "x"}, "advertise"},
		{Config{Constants: Constants{KeyID: 1}}, "block_bytes"},
		{Config{Timers: Timers{Write: -1}}, "write is negative"},
		{Config{Timers: Timers{Heartbeat: 10 * time.Millisecond, Lease: time.Second}}, "lease of 1s"},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			s.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: error is %v, want %q in it", c.cfg, err, c.text)
		}
		if c.cfg.Listener != nil {
			if _, err := c.cfg.Listener.Accept(); err == nil {
				t.Error("the listener is still open")
			}
		}
	}
}

// Stop is idempotent, at every stage of a store's life.
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
	s, err := Open(Config{})
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
		t.Error("nobody was told of the change")
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

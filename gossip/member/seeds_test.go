package member

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/dnstest"
)

func TestDiscovery(t *testing.T) {
	seed := start(t, testConfig("seed"))
	addr := netip.MustParseAddrPort(seed.Self().Addr)
	port := strings.TrimPrefix(seed.Self().Addr, "127.0.0.1:")
	file := filepath.Join(t.TempDir(), "seeds")
	for _, tc := range []struct {
		name, entry string
		publish     func(d *dnstest.Server) error
	}{
		{"host", "seed.test:" + port, func(d *dnstest.Server) error { d.Host("seed.test", "127.0.0.1"); return nil }},
		{"dns", "dns:seed.test:" + port, func(d *dnstest.Server) error { d.Host("seed.test", "127.0.0.1"); return nil }},
		{"srv", "srv:_gossip._tcp.test", func(d *dnstest.Server) error {
			d.Host("target.test", "127.0.0.1")
			d.Service("_gossip._tcp.test", net.SRV{Target: "gone.test.", Port: 1}, net.SRV{Target: "target.test.", Port: addr.Port()})
			return nil
		}},
		{"file", "file:" + file, func(*dnstest.Server) error {
			return os.WriteFile(file, []byte("# the fleet\n\nno port at all:x:y\n"+addr.String()+"\n"), 0o600)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dns := dnstest.Start(t)
			cfg := testConfig("by-" + tc.name)
			cfg.Join = []string{tc.entry}
			if tc.name == "file" {
				cfg.RejoinInterval = time.Hour
			}
			n := start(t, cfg)
			eventually(t, "a first attempt", n.Joined, func() any { return nil })
			if e := n.JoinErrors(); len(e) != 1 || e[0].Err == nil || e[0].Seed != tc.entry {
				t.Fatal(e)
			}
			if err := tc.publish(dns); err != nil {
				t.Fatal(err)
			}
			eventually(t, "joined", func() bool { return n.state("seed") == StateAlive }, func() any { return n.JoinErrors() })
			eventually(t, "no error of an address is left", func() bool {
				e := slices.DeleteFunc(n.JoinErrors(), func(e SeedError) bool { return e.Addr == "" })
				return len(e) == 1 && e[0].Err == nil && e[0].Addr == addr.String()
			}, func() any { return n.JoinErrors() })
		})
	}
}

func TestSeedEntries(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Host("two.test", "10.0.0.1", "fd00::1")
	dns.Host("none.test")
	s, err := newSeeds(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		entry string
		want  []string
	}{
		{"10.1.2.3:7000", []string{"10.1.2.3:7000"}},
		{"10.1.2.3", []string{"10.1.2.3:7946"}},
		{"fd00::2", []string{"[fd00::2]:7946"}},
		{"[fd00::2]:7000", []string{"[fd00::2]:7000"}},
		{"two.test", []string{"10.0.0.1:7946", "[fd00::1]:7946"}},
		{"dns:two.test:1", []string{"10.0.0.1:1", "[fd00::1]:1"}},
		{"none.test", nil},
		{"absent.test", nil},
		{"srv:_absent._tcp.test", nil},
		{"file:/nonexistent/seeds", nil},
	} {
		if err := checkSeed(tc.entry); err != nil {
			t.Errorf("%s: %v", tc.entry, err)
		}
		got, err := s.resolve(context.Background(), tc.entry)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.want != nil) {
			t.Errorf("%s: %v, %v; want %v", tc.entry, got, err, tc.want)
		}
	}
	for _, entry := range []string{"", ":7946", "host:0", "host:70000", "host:x", "a b:1", "dns:", "srv:a b", "file:", "host:1:2"} {
		if err := checkSeed(entry); err == nil {
			t.Errorf("%q is taken", entry)
		}
	}
}

func TestAdvertise(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Host("named.test", "10.9.8.7")
	for _, tc := range []struct{ bind, advertise, join, want string }{
		{"127.0.0.1:0", "", "", "127.0.0.1"},
		{"localhost:0", "", "", "127.0.0.1"},
		{"127.0.0.1:0", "127.0.0.2", "", "127.0.0.2"},
		{"127.0.0.1:0", "named.test:999", "", "10.9.8.7:999"},
		{"0.0.0.0:0", "", "127.0.0.1:1", "127.0.0.1"},
		{":0", "", "127.0.0.1:1", "127.0.0.1"},
	} {
		cfg := testConfig("a")
		cfg.Bind, cfg.Advertise = tc.bind, tc.advertise
		if tc.join != "" {
			cfg.Join = []string{tc.join}
		}
		n := start(t, cfg)
		if got := n.Self().Addr; !strings.HasPrefix(got, tc.want) {
			t.Errorf("%+v: %s", tc, got)
		}
	}
	for _, ip := range []string{"127.0.0.1", "0.0.0.0", "fe80::1", "224.0.0.1"} {
		if addressRank(netip.MustParseAddr(ip)) != 0 {
			t.Error(ip, "is offered to others")
		}
	}
}

func TestSilentSeed(t *testing.T) {
	seed := start(t, testConfig("seed"))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	i := 0
	eventually(t, "a member while another address is still being asked", func() bool {
		i++
		cfg := testConfig(fmt.Sprint("b", i))
		cfg.Join = []string{silent.Addr().String(), seed.Self().Addr}
		l, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Stop(context.Background()) }()
		alive := func(name string) bool { m, ok := l.table.get(name); return ok && m.State == StateAlive }
		for !l.Joined() {
			if alive("seed") && !l.Joined() {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	}, func() any { return i })
}

func TestSeedFileSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "seeds")
	if err := os.WriteFile(file, []byte("127.0.0.1:x\n127.0.0.1:9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig("a")
	cfg.Join = []string{"file:" + file}
	n := start(t, cfg)
	eventually(t, "both", func() bool {
		e := n.JoinErrors()
		return len(e) == 2 && strings.Contains(fmt.Sprint(e), ":1: ")
	}, func() any { return n.JoinErrors() })
}

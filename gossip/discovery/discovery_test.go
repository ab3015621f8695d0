package discovery_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"grapevine.example/chaos/dnstest"
	"grapevine.example/gossip/discovery"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		entry, rest string
		kind        discovery.Kind
	}{
		{"dns:a.test:80", "a.test:80", discovery.Host},
		{"srv:_a._tcp.test", "_a._tcp.test", discovery.SRV},
		{"file:/etc/c:d", "/etc/c:d", discovery.File},
		{"file:", "", discovery.File},
		{"a.test:80", "a.test:80", ""},
		{"DNS:a.test", "DNS:a.test", ""},
		{"[fd00::1]:80", "[fd00::1]:80", ""},
		{"", "", ""},
	} {
		if kind, rest := discovery.Split(tc.entry); kind != tc.kind || rest != tc.rest {
			t.Errorf("%q: kind %q, rest %q", tc.entry, kind, rest)
		}
	}
}

func TestCheckSRV(t *testing.T) {
	for name, valid := range map[string]bool{
		"_a._tcp.test": true, "": false, "a b": false, "a.test:80": false, "a/b": false, "a\x00": false, "ä.test": false,
	} {
		switch err := discovery.CheckSRV(name); {
		case valid && err != nil:
			t.Errorf("%q: %v", name, err)
		case !valid && (err == nil || !strings.Contains(err.Error(), "want srv:_service._tcp.name")):
			t.Errorf("%q: %v does not say what is wanted", name, err)
		}
	}
}

func TestHosts(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Host("two.test", "10.0.0.1", "fd00::1")
	dns.Host("empty.test")
	for host, want := range map[string][]string{
		"two.test":         {"10.0.0.1:80", "[fd00::1]:80"},
		"10.9.8.7":         {"10.9.8.7:80"},
		"::ffff:10.9.8.7":  {"10.9.8.7:80"},
		"fd00::2":          {"[fd00::2]:80"},
		"empty.test":       nil,
		"absent.test":      nil,
		"not a host.test.": nil,
	} {
		got, err := discovery.LookupHostPort(t.Context(), host, "80")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
		if (err == nil) != (want != nil) || err != nil && !strings.Contains(err.Error(), strings.TrimSuffix(host, ".")) {
			t.Errorf("%s: error %v", host, err)
		}
	}
	// The next lookup sees a change: nothing is kept.
	dns.Host("two.test", "10.0.0.9")
	if got, err := discovery.LookupHost(t.Context(), "two.test"); err != nil || !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.9")}) {
		t.Errorf("%v, %v after a change", got, err)
	}
}

func TestServices(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Host("a.test", "10.0.0.1", "fd00::1")
	dns.Service("_some._tcp.test", net.SRV{Target: "gone.test.", Port: 1}, net.SRV{Target: "a.test.", Port: 7946}, net.SRV{Target: "a.test.", Port: 0})
	got, err := discovery.LookupSRV(t.Context(), "_some._tcp.test")
	slices.Sort(got)
	if !slices.Equal(got, []string{"10.0.0.1:7946", "[fd00::1]:7946"}) {
		t.Error(got)
	}
	if err == nil || !strings.Contains(err.Error(), "gone.test") || strings.Contains(err.Error(), "no usable record") {
		t.Errorf("beside a target without an address: %v", err)
	}
	dns.Service("_all._tcp.test", net.SRV{Target: "a.test.", Port: 80})
	if got, err := discovery.LookupSRV(t.Context(), "_all._tcp.test"); len(got) != 2 || err != nil {
		t.Error(got, err)
	}
	dns.Service("_none._tcp.test", net.SRV{Target: "a.test.", Port: 0})
	for name, says := range map[string]string{"_none._tcp.test": "has no usable record", "_absent._tcp.test": "no such host"} {
		if got, err := discovery.LookupSRV(t.Context(), name); got != nil || err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestServiceAddressesAreBounded(t *testing.T) {
	dns := dnstest.Start(t)
	var addrs []string
	for i := range 50 {
		addrs = append(addrs, fmt.Sprintf("10.0.0.%d", i))
	}
	dns.Host("many.test", addrs...)
	var records []net.SRV
	for i := range 30 {
		records = append(records, net.SRV{Target: "many.test.", Port: uint16(i + 1)})
	}
	dns.Service("_many._tcp.test", records...)
	got, err := discovery.LookupSRV(t.Context(), "_many._tcp.test")
	if err != nil || len(got) != discovery.MaxAddrs {
		t.Errorf("%d addresses of %d, %v; want %d", len(got), len(addrs)*len(records), err, discovery.MaxAddrs)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(path, []byte("10.0.0.1:80\n"), 0o600), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	if text, err := discovery.ReadFile(path, 12); err != nil || string(text) != "10.0.0.1:80\n" {
		t.Errorf("%q, %v", text, err)
	}
	for _, tc := range []struct {
		path  string
		limit int
		says  string
	}{
		{path, 11, "is longer than 11 bytes"},
		{dir, 12, "is not a regular file"},
		{pipe, 12, "is not a regular file"}, // opening it would block
		{filepath.Join(dir, "absent"), 12, "no such file"},
	} {
		if _, err := discovery.ReadFile(tc.path, tc.limit); err == nil || !strings.Contains(err.Error(), tc.path) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s of at most %d bytes: %v", tc.path, tc.limit, err)
		}
	}
}

func TestStampsTellVersionsApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	stamp := func() discovery.Stamp {
		t.Helper()
		s, err := discovery.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s, err := discovery.Stat(path); !errors.Is(err, fs.ErrNotExist) || s != (discovery.Stamp{}) {
		t.Errorf("no file: %v, %v", s, err)
	}
	at := time.Unix(1_760_000_000, 0)
	write := func(text string, at time.Time) discovery.Stamp {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		return stamp()
	}
	first := write("a", at)
	if first != stamp() {
		t.Error("one version has two stamps")
	}
	if write("ab", at) == first || write("b", at.Add(time.Second)) == first {
		t.Error("two versions have one stamp")
	}
}

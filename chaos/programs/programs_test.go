//go:build linux

package programs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigure(t *testing.T) {
	s := Setting{Dir: t.TempDir(), Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, Backends: []string{"127.0.0.1:3", "127.0.0.1:4"}, Threads: 7}
	for program, want := range map[string][]string{
		"nginx":   {"worker_processes 7;", "upstream engines {\n    server 127.0.0.1:3;\n    server 127.0.0.1:4;\n", "listen 127.0.0.1:2 "},
		"haproxy": {"nbthread 7\n", "bind 127.0.0.1:1 ", "server e1 127.0.0.1:4\n"},
	} {
		text, argv, err := Configure(program, s)
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(filepath.Join(s.Dir, program+".cfg"))
		if err != nil || string(file) != text || argv[0] != program {
			t.Errorf("%v, %v: the file differs from\n%s", argv, err, text)
		}
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("no %q in\n%s", line, text)
			}
		}
		s := s
		s.Balance = "chosen by this line"
		if text, _, err = Configure(program, s); err != nil || strings.Count(text, s.Balance) != 1 {
			t.Errorf("%v: want %q once in\n%s", err, s.Balance, text)
		}
	}
	if _, _, err := Configure("envoy", s); err == nil {
		t.Error("a program without a configuration was accepted")
	}
}

func TestStart(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	addr := server.Listener.Addr().String()
	p, err := Start(t.Context(), t.TempDir(), addr, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	if _, rss := Usage(p.PID()); rss == 0 {
		t.Error("a running program has no memory")
	}
	p.Stop()
	p.Stop()
	if cpu, rss := Usage(p.PID()); cpu != 0 || rss != 0 {
		t.Errorf("a program that ended uses %v and %d bytes", cpu, rss)
	}
	server.Close()
	_, err = Start(t.Context(), t.TempDir(), addr, "sh", "-c", "echo no such setting; exit 1")
	if err == nil || !strings.Contains(err.Error(), "it ended at once: no such setting") {
		t.Errorf("%v", err)
	}
}

//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"

	"grapevine.example/chaos/programs"
)

type contender struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Config is the whole configuration, for readers to judge and repeat.
	Config string `json:"config"`

	addr       string
	streamAddr string            // for streams; nginx needs a server without buffering for those
	admin      string            // source of CPU profiles; empty for other programs
	proc       *programs.Process // nil for direct access
}

// stage is the backends of one kind and the contenders in front of them.
type stage struct {
	backend *programs.Process
	field   []*contender
	started []*programs.Process

	collector *httptest.Server // of spans; nil without
}

func (st *stage) close() {
	for _, p := range slices.Backward(st.started) {
		p.Stop()
	}
	if st.collector != nil {
		st.collector.Close()
	}
}

// balance spreads requests evenly, as nginx does without a line.
var balance = map[string]string{"haproxy": "balance roundrobin"}

// setStage starts the backends and the contenders and waits until each answers. The caller closes
// the stage even after an error; it is never nil.
func setStage(ctx context.Context, o options, dir, backend string) (*stage, error) {
	st := &stage{}
	if backendKinds[backend] == "" {
		return st, errors.New("want engine or light")
	}
	backends, err := programs.FreeAddrs(backendCount)
	if err != nil {
		return st, err
	}
	self, err := os.Executable()
	if err != nil {
		return st, err
	}
	mode := map[string]string{"engine": "engine", "light": "backend"}[backend]
	if st.backend, err = st.start(ctx, dir, backends[0], append([]string{self, mode}, backends...)...); err != nil {
		return st, err
	}
	st.field = []*contender{{Name: "direct", Version: "no proxy, one of the backends", addr: backends[0], streamAddr: backends[0]}}
	for _, name := range []string{"nginx", "haproxy", "bare", "grapevine", "again", "page", "unsampled", "tenth", "every", "other", "other again"} {
		if !strings.Contains(","+o.only+",", ","+name+",") {
			continue
		}
		addrs, err := programs.FreeAddrs(2)
		if err != nil {
			return st, err
		}
		c, argv := &contender{Name: name, addr: addrs[0], streamAddr: addrs[0]}, []string(nil)
		switch name {
		case "nginx":
			c.streamAddr, c.Version = addrs[1], programs.Version("nginx", "-v")
		case "haproxy":
			c.Version = programs.Version("haproxy", "-v")
		case "bare":
			c.streamAddr, c.Version = "", "what grapevine's HTTP library costs alone" // it cannot stream
			argv = append([]string{self, "bare", addrs[0]}, backends...)
		case "grapevine", "again", "page", "unsampled", "tenth", "every", "other", "other again":
			binary := o.binary
			if strings.HasPrefix(name, "other") {
				binary = o.other
			}
			c.admin, c.Version = addrs[1], programs.Version(binary, "version")
			argv = []string{binary, "serve", "--listen", addrs[0], "--admin", addrs[1], "--log-level", "warn", "--pprof"}
			for _, b := range backends {
				argv = append(argv, "--backend", "http://"+b)
			}
			argv = append(argv, strings.Fields(o.serve)...)
			switch name {
			case "unsampled":
				argv = append(argv, "--doctor-samples", "0")
			case "tenth", "every":
				share := map[string]string{"tenth": "0.1", "every": "1"}[name]
				argv = append(argv, "--otlp-endpoint", st.startCollector(), "--trace-share", share)
			}
		}
		if c.Config = strings.Join(argv, " "); argv == nil {
			set := programs.Setting{Dir: dir, Addrs: addrs, Backends: backends, Threads: 2, Balance: balance[name]}
			if c.Config, argv, err = programs.Configure(name, set); err != nil {
				return st, err
			}
		}
		if c.proc, err = st.start(ctx, dir, c.addr, argv...); err != nil {
			return st, err
		}
		st.field = append(st.field, c)
	}
	return st, nil
}

// startCollector returns the URL of a server that takes all spans until the stage closes.
func (st *stage) startCollector() string {
	if st.collector == nil {
		st.collector = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
		}))
	}
	return st.collector.URL
}

// start runs a program until the stage closes, and waits until it answers at addr.
func (st *stage) start(ctx context.Context, dir, addr string, argv ...string) (*programs.Process, error) {
	p, err := programs.Start(ctx, dir, addr, argv...)
	if err == nil {
		st.started = append(st.started, p)
	}
	return p, err
}

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"grapevine/raftstore"
)

const (
	// fileEvery is how often a file is checked, by one stat.
	fileEvery = time.Second
	// resolveWait bounds one attempt to resolve.
	dnsEvery    = 5 * time.Second
	resolveWait = 4 * time.Second
	// dnsPatience is how long an address must be missing, since large answers are partial and DNS
	// caches disagree.
	dnsPatience   = 30 * time.Second
	maxSourceFile = 1 << 20
	// errSilence is the pause between log lines about a failing source.
	errSilence = time.Minute
)

type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// source is one entry of backends_from.
type source struct {
	entry string // as configured: file:PATH, dns:NAME:PORT or srv:NAME
	kind  raftstore.Source
	rest  string
	dns   resolver
	stamp fileStamp
	every time.Duration
}

type fileStamp struct {
	at   time.Time
	size int64
}

func parseSource(entry string) (*source, error) {
	kind, rest, _ := strings.Cut(entry, ":")
	s := &source{entry: entry, rest: rest, dns: net.DefaultResolver, every: dnsEvery}
	switch {
	case kind == "file" && rest != "":
		s.kind, s.every = raftstore.File, fileEvery
	case kind == "srv" && rest != "" && !strings.ContainsAny(rest, ":/ "):
		s.kind = raftstore.DNS
	case kind == "dns":
		s.kind = raftstore.DNS
		host, port, err := net.SplitHostPort(rest)
		if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || n == 0 || host == "" || strings.ContainsAny(host, "/ ") {
			return nil, errors.New("want dns:NAME:PORT")
		}
	default:
		return nil, errors.New("want file:PATH, dns:NAME:PORT or srv:_SERVICE._tcp.NAME")
	}
	return s, nil
}

// read polls the source. unchanged: the last answer stands. An empty answer is an error: a
// half-written file must not empty the fleet.
func (s *source) read(ctx context.Context) (list []Backend, unchanged bool, err error) {
	switch {
	case s.kind == raftstore.File:
		list, unchanged, err = s.readFile()
	case strings.HasPrefix(s.entry, "srv:"):
		list, err = s.readSRV(ctx)
	default:
		host, port, _ := net.SplitHostPort(s.rest)
		list, err = s.readHost(ctx, host, port, nil)
	}
	if err == nil && !unchanged && len(list) == 0 {
		err = errors.New("names no backend: what it named before stays")
		s.stamp = fileStamp{} // report the mistake at every read
	}
	return list, unchanged, err
}

func (s *source) readHost(ctx context.Context, host, port string, list []Backend) ([]Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWait)
	defer cancel()
	addrs, err := s.dns.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return list, err
	}
	for _, a := range addrs {
		b := Backend{URL: "http://" + net.JoinHostPort(a.Unmap().String(), port)}
		if err := b.check(); err != nil {
			return list, err
		}
		list = append(list, b)
	}
	return distinct(list), nil
}

// readSRV returns every address of every target, or an error if one does not resolve.
func (s *source) readSRV(ctx context.Context) (list []Backend, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWait)
	defer cancel()
	_, records, err := s.dns.LookupSRV(ctx, "", "", s.rest)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if list, err = s.readHost(ctx, strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)), list); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func distinct(list []Backend) []Backend {
	seen := make(map[string]bool, len(list))
	out := list[:0]
	for _, b := range list {
		if !seen[b.Name] {
			seen[b.Name] = true
			out = append(out, b)
		}
	}
	return out
}

func (s *source) readFile() (list []Backend, unchanged bool, err error) {
	info, err := os.Stat(s.rest)
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is not a regular file", s.rest) // reading a pipe would block
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if stamp == s.stamp {
		return nil, true, nil
	}
	f, err := os.Open(s.rest)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSourceFile+1))
	switch {
	case err != nil:
		return nil, false, err
	case len(text) > maxSourceFile:
		return nil, false, fmt.Errorf("%s is larger than %s", s.rest, Bytes(maxSourceFile))
	}
	if list, err = parseBackendFile(s.rest, text); err == nil {
		s.stamp = stamp
	}
	return list, false, err
}

// parseBackendFile reads one backend per line in the form of --backend, or YAML. One mistake
// rejects it all.
func parseBackendFile(name string, text []byte) (list []Backend, err error) {
	var errs []error
	place := func(line int, err error) {
		var c *ConfigError
		if errors.As(err, &c) {
			c.File = name
			errs = append(errs, c)
			return
		}
		errs = append(errs, &ConfigError{File: name, Line: line, Reason: err.Error()})
	}
	names := make(map[string]int)
	add := func(b Backend, line int) {
		switch first, twice := names[b.Name]; {
		case b.APIKey != "" || b.APIKeyFile != "" || b.CAFile != "":
			place(line, fmt.Errorf("%s: api_key, api_key_file and ca_file are each node's own: give them under backends in its configuration, with this name", b.Name))
		case twice:
			place(line, fmt.Errorf("%s is in line %d already", b.Name, first))
		default:
			names[b.Name] = line
			list = append(list, b)
		}
	}
	if isYAML(text) {
		var doc yaml.Node
		if err := yaml.Unmarshal(text, &doc); err != nil {
			return nil, &ConfigError{File: name, Reason: err.Error()}
		}
		root := &doc
		if doc.Kind == yaml.DocumentNode {
			root = doc.Content[0]
		}
		if root.Kind == yaml.MappingNode && len(root.Content) == 2 && root.Content[0].Value == "backends" {
			root = root.Content[1]
		}
		if root.Kind != yaml.SequenceNode {
			return nil, &ConfigError{File: name, Line: root.Line, Reason: "not a list of backends", Remedy: "write - URL lines, or backends: and such a list"}
		}
		for i, n := range root.Content {
			b, bad := decodeBackend(n, "backends["+strconv.Itoa(i)+"]")
			for _, err := range bad {
				place(n.Line, err)
			}
			if len(bad) == 0 {
				add(b, n.Line)
			}
		}
		return list, errors.Join(errs...)
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		var b Backend
		if err := b.UnmarshalText(line); err != nil {
			place(i+1, err)
			continue
		}
		add(b, i+1)
	}
	return list, errors.Join(errs...)
}

// isYAML goes by the first line with content.
func isYAML(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		return !strings.HasPrefix(line, "http://") && !strings.HasPrefix(line, "https://")
	}
	return false
}

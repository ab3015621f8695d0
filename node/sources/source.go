package sources

import (
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

	"grapevine/node/config"
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

// source reads one entry of backends_from.
type source struct {
	config.Source
	dns   resolver
	stamp fileStamp
	every time.Duration
}

type fileStamp struct {
	at   time.Time
	size int64
}

func newSource(entry string) (*source, error) {
	parsed, err := config.ParseSource(entry)
	if err != nil {
		return nil, err
	}
	s := &source{Source: parsed, dns: net.DefaultResolver, every: dnsEvery}
	if s.Kind == raftstore.File {
		s.every = fileEvery
	}
	return s, nil
}

// read polls the source. unchanged: the last answer stands. An empty answer is an error: a
// half-written file must not empty the fleet.
func (s *source) read(ctx context.Context) (list []config.Backend, unchanged bool, err error) {
	switch {
	case s.Kind == raftstore.File:
		list, unchanged, err = s.readFile()
	case strings.HasPrefix(s.Entry, "srv:"):
		list, err = s.readSRV(ctx)
	default:
		host, port, _ := net.SplitHostPort(s.Rest)
		list, err = s.readHost(ctx, host, port, nil)
	}
	if err == nil && !unchanged && len(list) == 0 {
		err = errors.New("names no backend: what it named before stays")
		s.stamp = fileStamp{} // report the mistake at every read
	}
	return list, unchanged, err
}

func (s *source) readHost(ctx context.Context, host, port string, list []config.Backend) ([]config.Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWait)
	defer cancel()
	addrs, err := s.dns.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return list, err
	}
	for _, a := range addrs {
		b := config.Backend{URL: "http://" + net.JoinHostPort(a.Unmap().String(), port)}
		if err := b.Check(); err != nil {
			return list, err
		}
		list = append(list, b)
	}
	return distinct(list), nil
}

// readSRV returns every address of every target, or an error if one does not resolve.
func (s *source) readSRV(ctx context.Context) (list []config.Backend, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWait)
	defer cancel()
	_, records, err := s.dns.LookupSRV(ctx, "", "", s.Rest)
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

func distinct(list []config.Backend) []config.Backend {
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

func (s *source) readFile() (list []config.Backend, unchanged bool, err error) {
	info, err := os.Stat(s.Rest)
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s is not a regular file", s.Rest) // reading a pipe would block
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if stamp == s.stamp {
		return nil, true, nil
	}
	f, err := os.Open(s.Rest)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSourceFile+1))
	switch {
	case err != nil:
		return nil, false, err
	case len(text) > maxSourceFile:
		return nil, false, fmt.Errorf("%s is larger than %s", s.Rest, config.Bytes(maxSourceFile))
	}
	if list, err = config.ParseBackends(s.Rest, text); err == nil {
		s.stamp = stamp
	}
	return list, false, err
}

package sources

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"grapevine.example/gossip/discovery"
	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

const (
	fileEvery   = time.Second
	dnsEvery    = 5 * time.Second
	resolveWait = 4 * time.Second
	// dnsPatience is how long an address must be missing: large answers are partial and DNS caches
	// disagree.
	dnsPatience   = 30 * time.Second
	maxSourceFile = 1 << 20
	// errSilence is the pause between log lines about a failing source.
	errSilence = time.Minute
)

type source struct {
	config.Source
	stamp discovery.Stamp
	every time.Duration
}

func newSource(entry string) (*source, error) {
	parsed, err := config.ParseSource(entry)
	if err != nil {
		return nil, err
	}
	s := &source{Source: parsed, every: dnsEvery}
	if s.Kind == raftstore.File {
		s.every = fileEvery
	}
	return s, nil
}

// read treats an empty answer as an error: a half-written file must not empty the fleet.
func (s *source) read(ctx context.Context) (list []config.Backend, unchanged bool, err error) {
	if s.Kind == raftstore.File {
		list, unchanged, err = s.readFile()
	} else {
		list, err = s.resolve(ctx)
	}
	if err == nil && !unchanged && len(list) == 0 {
		err = errors.New("names no backend: what it named before stays")
		s.stamp = discovery.Stamp{} // report the mistake at every read
	}
	return list, unchanged, err
}

func (s *source) resolve(ctx context.Context) (list []config.Backend, err error) {
	ctx, cancel := context.WithTimeout(ctx, resolveWait)
	defer cancel()
	var addrs []string
	if strings.HasPrefix(s.Entry, "srv:") {
		addrs, err = discovery.LookupSRV(ctx, s.Rest)
	} else {
		host, port, _ := net.SplitHostPort(s.Rest)
		addrs, err = discovery.LookupHostPort(ctx, host, port)
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(addrs)
	for _, addr := range slices.Compact(addrs) {
		b := config.Backend{URL: "http://" + addr + s.Ranks}
		each, err := b.Each()
		if err != nil {
			return nil, err
		}
		list = append(list, each...)
	}
	return list, nil
}

func (s *source) readFile() (list []config.Backend, unchanged bool, err error) {
	stamp, err := discovery.Stat(s.Rest)
	if err != nil || stamp == s.stamp {
		return nil, err == nil, err
	}
	text, err := discovery.ReadFile(s.Rest, maxSourceFile)
	if err != nil {
		return nil, false, err
	}
	if list, err = config.ParseBackends(s.Rest, text); err == nil {
		s.stamp = stamp
	}
	return list, false, err
}

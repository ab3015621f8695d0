package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/gossip/discovery"
)

const (
	maxSeedAddrs   = discovery.MaxAddrs // of one join entry
	maxSeedFile    = 256 << 10
	resolveTimeout = 5 * time.Second
	watchInterval  = time.Second // one stat per file
)

type seeds struct {
	entries []string
	changed chan struct{} // capacity 1: a file has changed
}

func newSeeds(entries []string) (*seeds, error) {
	for _, e := range entries {
		if err := checkSeed(e); err != nil {
			return nil, fmt.Errorf("join %q: %w", e, err)
		}
	}
	return &seeds{entries: entries, changed: make(chan struct{}, 1)}, nil
}

func checkSeed(entry string) (err error) {
	switch kind, rest := discovery.Split(entry); {
	case rest == "":
		return errors.New("an address is missing")
	case kind == discovery.SRV:
		return discovery.CheckSRV(rest)
	case kind != discovery.File:
		_, _, err = seedAddr(rest)
	}
	return err
}

func seedAddr(s string) (host, port string, err error) {
	if host, port, err = splitPort(s); err != nil {
		return "", "", err
	}
	if host == "" || !isText(host) || strings.ContainsAny(host, " /") {
		return "", "", errors.New("want host:port")
	}
	if port == "" {
		port = DefaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("port %q", port)
	}
	return host, port, nil
}

// splitPort accepts a missing host or port.
func splitPort(s string) (host, port string, err error) {
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return ip.String(), "", nil
	}
	if !strings.Contains(s, ":") {
		return s, "", nil
	}
	return net.SplitHostPort(s)
}

// Results may come with an error: a bad line does not invalidate the rest.
func (s *seeds) resolve(ctx context.Context, entry string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	switch kind, rest := discovery.Split(entry); kind {
	case discovery.File:
		return resolveFile(ctx, rest)
	case discovery.SRV:
		return discovery.LookupSRV(ctx, rest)
	default:
		return resolveHost(ctx, rest)
	}
}

func resolveHost(ctx context.Context, addr string) ([]string, error) {
	host, port, err := seedAddr(addr)
	if err != nil {
		return nil, err
	}
	return discovery.LookupHostPort(ctx, host, port)
}

func resolveFile(ctx context.Context, path string) (out []string, err error) {
	text, err := discovery.ReadFile(path, maxSeedFile)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		addrs, err := resolveHost(ctx, line)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", path, i+1, err))
		}
		if out = append(out, addrs...); len(out) > maxSeedAddrs {
			return out[:maxSeedAddrs], fmt.Errorf("%s:%d: more than %d addresses", path, i+1, maxSeedAddrs)
		}
	}
	return out, errors.Join(errs...)
}

func (s *seeds) watch(ctx context.Context) {
	look := func() (stamps []discovery.Stamp) {
		for _, e := range s.entries {
			if kind, path := discovery.Split(e); kind == discovery.File {
				stamp, _ := discovery.Stat(path) // the join rounds report the error
				stamps = append(stamps, stamp)
			}
		}
		return stamps
	}
	for last := look(); len(last) > 0 && sleep(ctx, watchInterval); {
		if now := look(); !slices.Equal(now, last) {
			last = now
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

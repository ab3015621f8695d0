package member

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxSeedAddrs bounds one join entry: every node of a large fleet.
	maxSeedAddrs   = 1024
	maxSeedFile    = 256 << 10
	resolveTimeout = 5 * time.Second
	// watchInterval costs one stat per file.
	watchInterval = time.Second
)

type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// seeds resolves the join list. Safe for concurrent use.
type seeds struct {
	entries []string
	dns     resolver
	changed chan struct{} // capacity 1: a file has changed
}

func newSeeds(entries []string, dns resolver) (*seeds, error) {
	if dns == nil {
		dns = net.DefaultResolver
	}
	for _, e := range entries {
		if err := checkSeed(e); err != nil {
			return nil, fmt.Errorf("join %q: %w", e, err)
		}
	}
	return &seeds{entries: entries, dns: dns, changed: make(chan struct{}, 1)}, nil
}

func checkSeed(entry string) error {
	kind, rest := seedKind(entry)
	if rest == "" {
		return errors.New("an address is missing")
	}
	switch kind {
	case "file":
		return nil
	case "srv":
		if !isText(rest) || strings.ContainsAny(rest, ": /") {
			return errors.New("want srv:_service._tcp.name")
		}
		return nil
	}
	_, _, err := seedAddr(rest)
	return err
}

// seedKind splits "kind:rest"; a plain address has no kind.
func seedKind(entry string) (kind, rest string) {
	for _, k := range []string{"dns", "srv", "file"} {
		if rest, ok := strings.CutPrefix(entry, k+":"); ok {
			return k, rest
		}
	}
	return "", entry
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

// resolve may return both addresses and an error: a bad line does not invalidate the rest.
func (s *seeds) resolve(ctx context.Context, entry string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	kind, rest := seedKind(entry)
	switch kind {
	case "file":
		return s.resolveFile(ctx, rest)
	case "srv":
		return s.resolveSRV(ctx, rest)
	}
	return s.resolveHost(ctx, rest)
}

func (s *seeds) resolveHost(ctx context.Context, addr string) ([]string, error) {
	host, port, err := seedAddr(addr)
	if err != nil {
		return nil, err
	}
	ips, err := s.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = net.JoinHostPort(ip.String(), port)
	}
	return out, nil
}

func (s *seeds) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := s.dns.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	ips = ips[:min(len(ips), maxSeedAddrs)]
	out := make([]netip.Addr, len(ips))
	for i, ip := range ips {
		out[i] = ip.Unmap()
	}
	return out, nil
}

func (s *seeds) resolveSRV(ctx context.Context, name string) ([]string, error) {
	_, records, err := s.dns.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, err
	}
	var (
		out  []string
		errs []error
	)
	for _, r := range records[:min(len(records), maxSeedAddrs)] {
		ips, err := s.lookup(ctx, strings.TrimSuffix(r.Target, "."))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, ip := range ips {
			if len(out) < maxSeedAddrs && r.Port != 0 {
				out = append(out, net.JoinHostPort(ip.String(), strconv.Itoa(int(r.Port))))
			}
		}
	}
	if len(out) == 0 {
		errs = append(errs, fmt.Errorf("%s has no usable record", name))
	}
	return out, errors.Join(errs...)
}

// resolveFile ignores empty lines and comments (#).
func (s *seeds) resolveFile(ctx context.Context, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var (
		out  []string
		errs []error
	)
	text, err := io.ReadAll(io.LimitReader(f, maxSeedFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSeedFile {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxSeedFile)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		addrs, err := s.resolveHost(ctx, line)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", path, n, err))
			continue
		}
		out = append(out, addrs...)
		if len(out) > maxSeedAddrs {
			return out[:maxSeedAddrs], fmt.Errorf("%s:%d: more than %d addresses", path, n, maxSeedAddrs)
		}
	}
	return out, errors.Join(append(errs, lines.Err())...)
}

// watch checks the files until ctx ends and signals changes.
func (s *seeds) watch(ctx context.Context) {
	type stamp struct {
		mod  time.Time
		size int64
	}
	look := func() []stamp {
		var out []stamp
		for _, e := range s.entries {
			if kind, path := seedKind(e); kind == "file" {
				var st stamp
				if info, err := os.Stat(path); err == nil {
					st = stamp{info.ModTime(), info.Size()}
				}
				out = append(out, st)
			}
		}
		return out
	}
	last := look()
	if len(last) == 0 {
		return
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := look(); !slices.Equal(now, last) {
			last = now
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

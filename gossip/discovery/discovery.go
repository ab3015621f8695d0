// Package discovery finds the addresses behind host names, SRV records and files.
package discovery

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
)

const MaxAddrs = 1024 // of one name or record; the rest is ignored

// Kind is how a source names addresses, and the prefix of its entry.
type Kind string

const (
	Host Kind = "dns"
	SRV  Kind = "srv"
	File Kind = "file"
)

// Split returns an entry's kind and rest; without a known prefix, no kind and the whole entry.
func Split(entry string) (kind Kind, rest string) {
	prefix, rest, _ := strings.Cut(entry, ":")
	switch kind := Kind(prefix); kind {
	case Host, SRV, File:
		return kind, rest
	}
	return "", entry
}

// CheckSRV returns an error unless name may be one of an SRV record.
func CheckSRV(name string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' || r == '/' }) {
		return errors.New("want srv:_service._tcp.name")
	}
	return nil
}

// LookupHost returns at least one address, host itself if it is one.
func LookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	ips = ips[:min(len(ips), MaxAddrs)]
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, nil
}

// LookupHostPort returns host:port for each address of host.
func LookupHostPort(ctx context.Context, host, port string) ([]string, error) {
	ips, err := LookupHost(ctx, host)
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = net.JoinHostPort(ip.String(), port)
	}
	return out, err
}

// LookupSRV may return both host:port addresses and other targets' errors.
func LookupSRV(ctx context.Context, name string) (out []string, err error) {
	_, records, err := net.DefaultResolver.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, r := range records {
		if r.Port == 0 || len(out) >= MaxAddrs {
			continue
		}
		addrs, err := LookupHostPort(ctx, strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
		out, errs = append(out, addrs...), append(errs, err)
	}
	if len(out) == 0 {
		errs = append(errs, fmt.Errorf("%s has no usable record", name))
	}
	return out[:min(len(out), MaxAddrs)], errors.Join(errs...)
}

// Stamp tells versions of a file apart; zero means no file.
type Stamp struct {
	at   time.Time
	size int64
}

// Stat returns the stamp of a regular file; reading a pipe would block.
func Stat(path string) (Stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return Stamp{}, fmt.Errorf("%s is not a regular file", path)
	}
	return Stamp{info.ModTime(), info.Size()}, nil
}

// ReadFile reads a regular file of at most limit bytes.
func ReadFile(path string, limit int) ([]byte, error) {
	if _, err := Stat(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ReadAll(f, limit)
}

// ReadAll reads the rest of f, at most limit bytes.
func ReadAll(f *os.File, limit int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", f.Name(), limit)
	}
	return text, err
}

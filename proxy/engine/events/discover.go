package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

var (
	// ErrNone is what Discover returns for an engine that publishes no cache events.
	ErrNone = errors.New("the engine publishes no cache events")
	// ErrForeign is wrapped for an endpoint on another host than the engine's.
	ErrForeign = errors.New("the engine names another host for its cache events")
)

const (
	maxDiscovery = 4 << 20 // bytes of an answer; SGLang's has all its settings
	maxRanks     = 1024
)

// Discover asks an engine for its streams: GET /kv_event_sources (vLLM 0.31 and later), else GET /server_info (SGLang). base is the
// engine's URL without a trailing slash, key its bearer token or "". A wildcard host means the engine's own. Endpoints on other
// hosts are refused with ErrForeign, because an engine must not make the router connect elsewhere. The result is sorted by rank and
// not empty.
func Discover(ctx context.Context, client *http.Client, base, key string) ([]Source, error) {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("cache events: URL %q of the engine has no host", base)
	}
	for _, ask := range [...]struct {
		path string
		read func(answer []byte, host string) ([]Source, error)
	}{{"/kv_event_sources", vllmSources}, {"/server_info", sglangSources}} {
		answer, err := get(ctx, client, base+ask.path, key)
		if err == nil && answer != nil {
			var sources []Source
			if sources, err = ask.read(answer, u.Hostname()); err == nil && len(sources) > 0 {
				if err := check(sources); err != nil {
					return nil, err
				}
				return sources, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cache events: %s: %w", ask.path, err)
		}
	}
	return nil, fmt.Errorf("%w: start vLLM with --kv-events-config, SGLang too, or set events to the address", ErrNone)
}

// check sorts sources by rank, and finds impossible ranks and block sizes.
func check(sources []Source) error {
	slices.SortFunc(sources, func(a, b Source) int { return cmp.Compare(a.Rank, b.Rank) })
	for i, s := range sources {
		if s.Rank < 0 || i > 0 && s.Rank == sources[i-1].Rank {
			return fmt.Errorf("cache events: rank %d is negative or named twice", s.Rank)
		}
		if s.BlockSize < 0 || s.BlockSize > maxCount {
			return fmt.Errorf("cache events: block size of %d tokens", s.BlockSize)
		}
	}
	return nil
}

// get returns the answer, or nil if the engine does not have the path or keeps it to itself.
func get(ctx context.Context, client *http.Client, url, key string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode >= 500:
		return nil, fmt.Errorf("answered %d", resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, nil
	case len(body) > maxDiscovery:
		return nil, fmt.Errorf("answer of more than %d bytes", maxDiscovery)
	}
	return body, nil
}

type vllmSource struct {
	Rank      *int   `json:"data_parallel_rank"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
	BlockSize int    `json:"block_size"`
}

// vllmSources reads an object by rank, or a list of objects that name it.
func vllmSources(answer []byte, host string) ([]Source, error) {
	var list []vllmSource
	byRank := make(map[string]vllmSource)
	if err := json.Unmarshal(answer, &byRank); err == nil {
		for name, v := range byRank {
			rank, err := strconv.Atoi(name)
			if err != nil {
				return nil, fmt.Errorf("rank %q is not a number", name)
			}
			v.Rank = &rank
			list = append(list, v)
		}
	} else if err := json.Unmarshal(answer, &list); err != nil {
		return nil, err
	}
	if len(list) > maxRanks {
		return nil, fmt.Errorf("%d ranks, at most %d are accepted", len(list), maxRanks)
	}
	var sources []Source
	for i, v := range list {
		s := Source{Rank: i, Topic: v.Topic, BlockSize: v.BlockSize, Session: InHeader}
		if v.Rank != nil {
			s.Rank = *v.Rank
		}
		var err error
		if s.Endpoint, err = onHost(v.Endpoint, host, 0); err != nil {
			return nil, fmt.Errorf("endpoint: %w", err)
		}
		if v.Replay != "" {
			if s.Replay, err = onHost(v.Replay, host, 0); err != nil {
				return nil, fmt.Errorf("replay endpoint: %w", err)
			}
		}
		sources = append(sources, s)
	}
	return sources, nil
}

func sglangSources(answer []byte, host string) ([]Source, error) {
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
			Host      string `json:"endpoint_host"`
			Port      int    `json:"endpoint_port_base"`
			Replay    int    `json:"replay_endpoint_port_base"`
			Topic     string `json:"topic"`
			BlockSize int    `json:"block_size"`
			Ranks     int    `json:"dp_size"`
		} `json:"kv_events"`
		KeepsSessions bool `json:"enable_session_radix_cache"` // a session id pins its blocks
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return nil, err
	}
	e := info.Events
	if e == nil || e.Publisher != "zmq" {
		return nil, nil
	}
	if e.Ranks > maxRanks {
		return nil, fmt.Errorf("%d ranks, at most %d are accepted", e.Ranks, maxRanks)
	}
	carrier := InBody
	if info.KeepsSessions {
		carrier = NoCarrier
	}
	var sources []Source
	for rank := range max(e.Ranks, 1) {
		s := Source{Rank: rank, Topic: e.Topic, BlockSize: e.BlockSize, Session: carrier}
		var err error
		if s.Endpoint, err = onHost(net.JoinHostPort(e.Host, strconv.Itoa(e.Port)), host, rank); err != nil {
			return nil, fmt.Errorf("endpoint: %w", err)
		}
		if e.Replay != 0 {
			if s.Replay, err = onHost(net.JoinHostPort(e.Host, strconv.Itoa(e.Replay)), host, rank); err != nil {
				return nil, fmt.Errorf("replay endpoint: %w", err)
			}
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// onHost turns an engine's [tcp://]HOST:PORT into an address on the engine's host, its port higher by rank.
func onHost(endpoint, host string, rank int) (string, error) {
	name, port, err := split(endpoint)
	if err != nil {
		return "", err
	}
	if !wildcard(name) && !sameHost(name, host) {
		return "", fmt.Errorf("%w: %q, its own is %q; to connect there, set events to the address", ErrForeign, name, host)
	}
	if port+rank > 65535 {
		return "", fmt.Errorf("port %d of rank %d is above 65535", port+rank, rank)
	}
	return net.JoinHostPort(host, strconv.Itoa(port+rank)), nil
}

func split(endpoint string) (host string, port int, err error) {
	rest, found := strings.CutPrefix(endpoint, "tcp://")
	if !found && strings.Contains(endpoint, "://") {
		return "", 0, fmt.Errorf("%q: only tcp:// can be subscribed to", endpoint)
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return "", 0, fmt.Errorf("%q has no port", endpoint)
	}
	port, err = strconv.Atoi(rest[colon+1:])
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%q: port %q is not within 1 to 65535", endpoint, rest[colon+1:])
	}
	return strings.Trim(rest[:colon], "[]"), port, nil
}

func wildcard(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || host == "*" || err == nil && a.IsUnspecified()
}

func sameHost(a, b string) bool {
	return strings.EqualFold(a, b) || loopback(a) && loopback(b)
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.IsLoopback()
}

// Configured reads the address of a stream that an operator gives: tcp://HOST:PORT, with ?replay=PORT or ?replay=HOST:PORT for the
// engine's replay socket, and &topic=PREFIX. The host may be any. Session ids go into the header, as vLLM wants them.
func Configured(address string) (Source, error) {
	u, err := url.Parse(address)
	if err != nil {
		return Source{}, fmt.Errorf("address of cache events: %w", err)
	}
	bad := func(what string) (Source, error) {
		return Source{}, fmt.Errorf("address of cache events %q: %s; want tcp://HOST:PORT?replay=PORT&topic=PREFIX", address, what)
	}
	host, port, err := split(u.Scheme + "://" + u.Host)
	switch {
	case err != nil:
		return bad(err.Error())
	case wildcard(host):
		return bad("no host")
	case u.Path != "" || u.User != nil || u.Fragment != "":
		return bad("only a host, a port and a query are read")
	}
	s := Source{Endpoint: net.JoinHostPort(host, strconv.Itoa(port)), Session: InHeader}
	for name, values := range u.Query() {
		switch {
		case len(values) != 1:
			return bad(name + " is given twice")
		case name == "topic":
			s.Topic = values[0]
		case name == "replay":
			replay := values[0]
			if !strings.Contains(replay, ":") {
				replay = net.JoinHostPort(host, replay)
			}
			if host, port, err = split(replay); err != nil || wildcard(host) {
				return bad("replay is neither a port nor HOST:PORT")
			}
			s.Replay = net.JoinHostPort(host, strconv.Itoa(port))
		default:
			return bad(name + " is unknown")
		}
	}
	return s, nil
}

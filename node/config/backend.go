package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine.example/proxy/engine/events"
	"grapevine.example/raftstore"
)

// Backend is one engine of the static list, or one or all of its data-parallel ranks.
type Backend struct {
	URL      string   // http or https://host[:port][/base][#rank=K|#ranks=N]
	Name     string   // unique, in x-grapevine-backend; default: host:port, base and @K
	Models   []string // nil: the engine is asked
	Weight   float64  // share of traffic; 0 becomes 1
	KVTokens int      // KV cache in tokens; 0: learned
	Role     string   // prefill or decode; "": both
	// BootstrapPort makes a prefill or decode engine SGLang's; 0: vLLM's.
	BootstrapPort int
	Labels        []string // NAME=VALUE, for rules; zone also prices the way to the engine
	APIKey        string   // bearer token instead of the client's
	// APIKeyFile is read again at each reload.
	APIKeyFile string
	CAFile     string // PEM roots; default: the system's
	// Events is the address of the engine's cache events, tcp://HOST:PORT?replay=PORT&topic=PREFIX, or off; "": the engine is asked.
	Events string
}

// EventsOff leaves the cache events of an engine, or of all, alone; EventsAuto asks engines for them.
const (
	EventsOff  = "off"
	EventsAuto = "auto"
)

func (b *Backend) fields() []field {
	return []field{
		{"url", &b.URL}, {"name", &b.Name}, {"models", &b.Models}, {"weight", &b.Weight}, {"kv_tokens", &b.KVTokens},
		{"role", &b.Role}, {"bootstrap_port", &b.BootstrapPort}, {"labels", &b.Labels},
		{"api_key", &b.APIKey}, {"api_key_file", &b.APIKeyFile}, {"ca_file", &b.CAFile},
		{"events", &b.Events},
	}
}

func decodeBackend(n *yaml.Node, key string) (b Backend, errs []error) {
	if n.Kind == yaml.ScalarNode {
		b.URL = n.Value
	} else {
		errs = decodeMapping(n, key, b.fields(), nil)
	}
	if len(errs) == 0 {
		if err := b.Check(); err != nil {
			errs = append(errs, &Error{Line: n.Line, Key: key, Reason: err.Error()})
		}
	}
	return b, errs
}

// setFields sets fields from key=value texts; lists are written A|B.
func setFields(texts []string, fields []field) error {
	for _, text := range texts {
		k, v, _ := strings.Cut(text, "=")
		f, ok := findField(fields, strings.TrimSpace(k))
		if !ok {
			return fmt.Errorf("unknown attribute %q: %s", k, remedyUnknown(k, fields))
		}
		var err error
		switch dst := f.dst.(type) {
		case *string:
			*dst = v
		case *[]string:
			*dst = strings.Split(v, "|")
		case *float64:
			*dst, err = strconv.ParseFloat(v, 64)
		case *int:
			*dst, err = strconv.Atoi(v)
		}
		if err != nil {
			return fmt.Errorf("%s %q is not a number", k, v)
		}
	}
	return nil
}

// UnmarshalText reads URL[,key=value...].
func (b *Backend) UnmarshalText(text []byte) error {
	*b = Backend{}
	parts := strings.Split(string(text), ",")
	b.URL = strings.TrimSpace(parts[0])
	if err := setFields(parts[1:], b.fields()[1:]); err != nil {
		return fmt.Errorf("backend %s: %w", b.URL, err)
	}
	return b.Check()
}

// Check normalises b, or returns the first mistake.
func (b *Backend) Check() error {
	u, err := url.Parse(b.URL)
	switch {
	case err != nil:
		return fmt.Errorf("url %q does not parse: write http://host:port", b.URL)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Hostname() == "":
		return fmt.Errorf("url %q is not one of an engine: write http://host:port", b.URL)
	case u.User != nil, u.RawQuery != "":
		return errors.New("url must not hold a user, a query or a fragment other than a rank: use api_key for a credential")
	case !Finite(b.Weight) || b.Weight < 0:
		return fmt.Errorf("weight %v is not a number from 0 up", b.Weight)
	case b.KVTokens < 0:
		return fmt.Errorf("kv_tokens %d is negative", b.KVTokens)
	case b.BootstrapPort < 0 || b.BootstrapPort > 65535:
		return fmt.Errorf("bootstrap_port %d is not from 1 to 65535", b.BootstrapPort)
	case b.APIKey != "" && b.APIKeyFile != "":
		return errors.New("api_key and api_key_file are both given: keep one")
	case b.CAFile != "" && u.Scheme != "https":
		return errors.New("ca_file without https")
	}
	if err := b.checkRole(); err != nil {
		return err
	}
	slices.Sort(b.Labels)
	if err := raftstore.CheckLabels(b.Labels); err != nil {
		return fmt.Errorf("labels: %w", err)
	}
	if b.Events != "" && b.Events != EventsOff {
		if _, err := events.Configured(b.Events); err != nil {
			return fmt.Errorf("events: %w, or %s", err, EventsOff)
		}
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("url %q: port %s is not from 1 to 65535", b.URL, p)
		}
	}
	if slices.Contains(b.Models, "") {
		return errors.New("models holds an empty name: remove it; without models the engine is asked")
	}
	if !HeaderWord(b.APIKey) {
		return errors.New("api_key holds a character that no header may hold")
	}
	rank, err := checkRanks(u)
	if err != nil {
		return err
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	// Engines document their URL with /v1, but requests carry that in their own path.
	u.Path = strings.TrimSuffix(u.Path, "/v1")
	b.URL = u.String()
	if b.Name == "" {
		b.Name = u.Host + u.Path + rank
	}
	if !HeaderWord(b.Name) || strings.Contains(b.Name, ",") {
		return fmt.Errorf("name %q holds something else than visible ASCII, or a comma: it goes into a response header", b.Name)
	}
	if b.Weight == 0 {
		b.Weight = 1
	}
	return nil
}

func (b *Backend) checkRole() error {
	var role raftstore.Role
	if err := role.UnmarshalText([]byte(cmp.Or(b.Role, role.String()))); err != nil {
		return err
	}
	if role == raftstore.Both {
		b.Role = ""
		if b.BootstrapPort != 0 {
			return errors.New("bootstrap_port without role prefill or decode: add the role, or leave out the port")
		}
	}
	return nil
}

func Finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// HeaderWord reports whether s is visible ASCII without spaces.
func HeaderWord(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' })
}

// Address splits the engine's URL for dialers and Host headers.
func (b *Backend) Address() (addr, host, base string, tls bool) {
	u, err := url.Parse(b.URL)
	if err != nil {
		panic("config: address of an unchecked backend: " + err.Error())
	}
	port, tls := u.Port(), u.Scheme == "https"
	if port == "" {
		port = "80"
		if tls {
			port = "443"
		}
	}
	h := u.Hostname()
	if strings.Contains(h, ":") {
		h = "[" + h + "]"
	}
	return h + ":" + port, u.Host, u.Path, tls
}

// Spec is what the fleet agrees on.
func (b *Backend) Spec() raftstore.Backend {
	s := raftstore.Backend{
		Name: b.Name, URL: b.URL, Models: b.Models, Weight: b.Weight, KVTokens: int64(b.KVTokens),
		BootstrapPort: uint16(b.BootstrapPort), Labels: b.Labels, Source: raftstore.Static,
	}
	if err := s.Role.UnmarshalText([]byte(cmp.Or(b.Role, s.Role.String()))); err != nil {
		panic("config: an unchecked backend: " + err.Error())
	}
	return s
}

// SameURL reports whether two URLs lead to the same engine or rank.
func SameURL(a, b string) bool {
	x, errX := raftstore.NormalURL(a)
	y, errY := raftstore.NormalURL(b)
	return errX == nil && errY == nil && strings.EqualFold(x, y)
}

package config

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine.example/gossip/discovery"
	"grapevine.example/proxy/clients"
)

// MaxClientsFile holds thousands of clients.
const MaxClientsFile = 4 << 20

// Refuse as the anonymous client refuses requests without a key.
const Refuse = "refuse"

// NewClientKey makes a key that cannot be guessed, and its hash as a clients file has it.
func NewClientKey() (key, hash string) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	key = "gv-" + base64.RawURLEncoding.EncodeToString(random[:])
	sum := clients.HashKey([]byte(key))
	return key, hex.EncodeToString(sum[:])
}

// ReadClients reads a clients file. The error joins a *Error for each mistake.
func ReadClients(path string) (*clients.Book, error) {
	text, err := discovery.ReadFile(path, MaxClientsFile)
	if err != nil {
		return nil, &Error{Key: "clients_file", Reason: err.Error()}
	}
	return ParseClients(path, text)
}

// ParseClients is ReadClients for text; name stands for the file in errors.
func ParseClients(name string, text []byte) (*clients.Book, error) {
	book, errs := parseClients(text)
	for _, err := range errs {
		var e *Error
		if errors.As(err, &e) {
			e.File = name
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return book, nil
}

func parseClients(text []byte) (*clients.Book, []error) {
	top, err := oneDocument(text)
	if err != nil {
		return nil, []error{err}
	}
	if top == nil {
		return nil, []error{&Error{Reason: "is empty", Remedy: "write clients: [] and anonymous: refuse to refuse everybody"}}
	}
	var file struct {
		clients   yaml.Node
		anonymous string
	}
	lines := make(map[string]int)
	errs := decodeMapping(top, "", []field{{"clients", &file.clients}, {"anonymous", &file.anonymous}}, lines)
	if top.Kind != yaml.MappingNode {
		return nil, errs
	}
	if given(top, "anonymous") == 0 {
		errs = append(errs, &Error{Line: top.Line, Key: "anonymous", Reason: "is missing", Remedy: "write refuse, or the name of the client that requests without a key belong to"})
	}
	if file.anonymous == Refuse {
		file.anonymous = ""
	}
	if lines["clients"] != 0 && file.clients.Kind != yaml.SequenceNode {
		errs = append(errs, &Error{Line: lines["clients"], Key: "clients", Reason: "not a list", Remedy: "write - {name: NAME, key_sha256: HASH}"})
	}
	var list []*clients.Client
	var entries []*clientEntry
	for i, n := range file.clients.Content {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		e := &clientEntry{key: fmt.Sprintf("clients[%d]", i), line: n.Line, lines: make(map[string]int), weight: 1, priority: clients.Interactive.String()}
		c, bad := e.decode(n)
		list, entries, errs = append(list, c), append(entries, e), append(errs, bad...)
	}
	unread := make(map[string]bool) // settings whose mistakes are known
	for _, err := range errs {
		var e *Error
		errors.As(err, &e)
		unread[e.Key] = true
	}
	book, err := clients.New(list, file.anonymous)
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			var m *clients.Error
			errors.As(one, &m)
			switch {
			case m.Client < 0:
				errs = append(errs, &Error{Line: lines[m.Field], Key: m.Field, Reason: m.Reason, Remedy: m.Remedy})
			case m.Client >= len(entries):
				errs = append(errs, &Error{Line: lines["clients"], Key: "clients", Reason: m.Reason, Remedy: m.Remedy})
			default:
				e := entries[m.Client]
				follows := unread[e.key] || unread[join(e.key, m.Field)] || e.lines[m.Field] == 0 && (e.misspelt || m.Field == "key_sha256" && unread["anonymous"])
				if !follows {
					errs = append(errs, e.mistake(m.Field, m.Reason, m.Remedy))
				}
			}
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		var x, y *Error
		errors.As(a, &x)
		errors.As(b, &y)
		return cmp.Compare(x.Line, y.Line)
	})
	return book, errs
}

// given returns the line of a key in a mapping; 0: it is not there.
func given(mapping *yaml.Node, key string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i].Line
		}
	}
	return 0
}

// clientEntry is a client as the file has it.
type clientEntry struct {
	key   string
	line  int
	lines map[string]int
	// misspelt: a key is unknown, so one that is missing may be there.
	misspelt bool

	name, priority         string
	keys                   yaml.Node
	models, paths          []string
	weight                 float64
	tokensPerMinute, limit amount
	trusted                bool
}

func (e *clientEntry) mistake(field, reason, remedy string) error {
	line := e.lines[field]
	if line == 0 {
		line = e.line
	}
	return &Error{Line: line, Key: join(e.key, field), Reason: reason, Remedy: remedy}
}

func (e *clientEntry) decode(n *yaml.Node) (*clients.Client, []error) {
	errs := decodeMapping(n, e.key, []field{
		{"name", &e.name}, {"key_sha256", &e.keys}, {"models", &e.models}, {"paths", &e.paths}, {"priority", &e.priority},
		{"weight", &e.weight}, {"tokens_per_minute", &e.tokensPerMinute}, {"in_flight", &e.limit}, {"trusted", &e.trusted},
	}, e.lines)
	e.misspelt = len(n.Content)/2 > len(e.lines)
	c := &clients.Client{
		Name: e.name, Models: e.models, Paths: e.paths, Weight: e.weight,
		TokensPerMinute: int64(e.tokensPerMinute), InFlight: int(e.limit), Trusted: e.trusted,
	}
	var err error
	if c.Priority, err = clients.ParsePriority(e.priority); err != nil {
		errs = append(errs, e.mistake("priority", err.Error(), "write one of them, or leave it out for interactive"))
	}
	hashes := []*yaml.Node{&e.keys}
	if e.keys.Kind == yaml.SequenceNode {
		hashes = e.keys.Content
	}
	for _, h := range hashes {
		if h.Kind == 0 {
			continue // no key
		}
		var k clients.KeyHash
		if raw, err := hex.DecodeString(h.Value); h.Kind != yaml.ScalarNode || err != nil || copy(k[:], raw) < len(k) || len(raw) != len(k) {
			// The text may be a key: it is not repeated.
			errs = append(errs, &Error{Line: h.Line, Key: join(e.key, "key_sha256"), Reason: "is not the SHA-256 of a key, 64 hexadecimal digits", Remedy: "write what grapevine clients new prints, never the key itself"})
			continue
		}
		c.Keys = append(c.Keys, k)
	}
	return c, errs
}

// amount is a whole number, with an optional unit k, M or G.
type amount int64

func (a *amount) UnmarshalText(text []byte) error {
	s, unit := string(text), int64(1)
	for suffix, size := range map[string]int64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if rest, ok := strings.CutSuffix(string(text), suffix); ok {
			s, unit = rest, size
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if v := n * float64(unit); err != nil || v != float64(int64(v)) || v > 1e15 || v < -1e15 {
		return fmt.Errorf("%q is not a whole number: write 20000, 20k or 2M", text)
	}
	*a = amount(n * float64(unit))
	return nil
}

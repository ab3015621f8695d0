// Package clients holds who may use a router, with which keys, and for what.
package clients

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// KeyHash is the SHA-256 of a client's key. Keys themselves are never kept.
type KeyHash [sha256.Size]byte

// HashKey returns the hash of a key as a client sends it.
func HashKey(key []byte) KeyHash { return sha256.Sum256(key) }

// MaxWeight bounds a client's weight.
const MaxWeight = 1000

// Priority orders requests that wait. A client may ask for its own or a lower one.
type Priority uint8

// The priorities, lowest first.
const (
	Batch Priority = iota
	Default
	Interactive
)

var priorities = [...]string{"batch", "default", "interactive"}

func (p Priority) String() string { return priorities[p] }

// Priorities returns all priorities, lowest first.
func Priorities() []Priority { return []Priority{Batch, Default, Interactive} }

// ParsePriority reads a name.
func ParsePriority(name string) (Priority, error) {
	if i := slices.Index(priorities[:], name); i >= 0 {
		return Priority(i), nil
	}
	return 0, fmt.Errorf("%q is none of %s", name, strings.Join(priorities[:], ", "))
}

// Client is one application or team. Immutable once in a Book.
type Client struct {
	Name            string
	Keys            []KeyHash // any of them; none for the anonymous client
	Models          []string  // that it may use: NAME or PREFIX*; nil: all
	Paths           []string  // that it may use: prefixes in whole segments; nil: all that the router serves
	Priority        Priority  // the highest it may ask for
	Weight          float64   // its share of a queue; above 0
	TokensPerMinute int64     // prompt tokens and max_tokens, over the whole fleet; 0: no limit
	InFlight        int       // requests at once, over the whole fleet; 0: no limit
	Trusted         bool      // may see receipts, and steer engines where that is allowed
}

// MayUseModel reports whether the client may use a model.
func (c *Client) MayUseModel(model []byte) bool {
	return c.Models == nil || slices.ContainsFunc(c.Models, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return string(model) == pattern || open && len(model) >= len(prefix) && string(model[:len(prefix)]) == prefix
	})
}

// MayUsePath reports whether the client may use a path.
func (c *Client) MayUsePath(path []byte) bool {
	return c.Paths == nil || slices.ContainsFunc(c.Paths, func(prefix string) bool {
		prefix = strings.TrimSuffix(prefix, "/")
		return len(path) >= len(prefix) && string(path[:len(prefix)]) == prefix && (len(path) == len(prefix) || path[len(prefix)] == '/')
	})
}

// Bounds of a Book.
const (
	MaxClients = 10_000
	MaxKeys    = 16 // of one client: the old and the new one while it changes
	MaxName    = 64 // bytes

	MaxTokensPerMinute = 1 << 31 // nodes exchange 32 bits
)

// Book is the clients of a router. Immutable and safe for concurrent use.
type Book struct {
	Clients   []*Client
	Anonymous *Client // of requests without a key; nil: they are refused

	byKey map[uint64][]keyed // by the first bytes of the hash
}

type keyed struct {
	hash   KeyHash
	client *Client
}

// New checks the clients. anonymous names one of them, or is empty: requests without a key are
// refused then. The error joins all mistakes; each is an *Error.
func New(list []*Client, anonymous string) (*Book, error) {
	b := &Book{Clients: list, byKey: make(map[uint64][]keyed, len(list))}
	var errs []error
	bad := func(i int, field, remedy, format string, args ...any) {
		errs = append(errs, &Error{i, field, fmt.Sprintf(format, args...), remedy})
	}
	if len(list) > MaxClients {
		bad(MaxClients, "", "remove those that are not used any more", "%d clients are more than %d", len(list), MaxClients)
	}
	names, keys := make(map[string]int, len(list)), make(map[uint32]string, len(list))
	for i, c := range list {
		for _, m := range c.check() {
			bad(i, m.Field, m.Remedy, "%s", m.Reason)
		}
		if first, taken := names[c.Name]; taken && c.Name != "" {
			bad(i, "name", "choose another name", "client %d is called %s, too", first+1, c.Name)
		}
		if other := keys[NameKey(c.Name)]; other != "" && other != c.Name {
			bad(i, "name", "change one name", "%s and %s have the same hash, by which nodes count use", c.Name, other)
		}
		names[c.Name], keys[NameKey(c.Name)] = i, c.Name
		if len(c.Keys) == 0 && c.Name != anonymous {
			bad(i, "key_sha256", "add the hash that grapevine clients new prints", "%s has no key", cmp.Or(c.Name, "the client"))
		}
		for _, k := range c.Keys {
			if other := b.find(k); other != nil {
				bad(i, "key_sha256", "make another one by grapevine clients new", "%s has the same key", other.Name)
			}
			b.byKey[k.head()] = append(b.byKey[k.head()], keyed{k, c})
		}
	}
	if anonymous != "" {
		i, known := names[anonymous]
		if known {
			b.Anonymous = list[i]
		} else {
			bad(-1, "anonymous", "write refuse, or the name of a client", "there is no client %q", anonymous)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return b, nil
}

// Error is a mistake in one client.
type Error struct {
	Client int    // index in the list; -1: none
	Field  string // as in the file
	Reason string
	Remedy string
}

func (e *Error) Error() string { return e.Field + ": " + e.Reason + ": " + e.Remedy }

func (c *Client) check() (mistakes []Error) {
	bad := func(wrong bool, field, remedy, format string, args ...any) {
		if wrong {
			mistakes = append(mistakes, Error{Field: field, Reason: fmt.Sprintf(format, args...), Remedy: remedy})
		}
	}
	const noLimit = "leave it out for no limit"
	wordless := strings.ContainsFunc(c.Name, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
	bad(c.Name == "", "name", "write one word, which labels metrics and logs", "is missing")
	bad(wordless || len(c.Name) > MaxName, "name", "write one such as search-eu", "%q is not one word of at most %d visible ASCII characters", c.Name, MaxName)
	bad(c.Name == "refuse", "name", "choose another name", "refuse is what anonymous says to refuse requests without a key")
	bad(len(c.Keys) > MaxKeys, "key_sha256", "remove old ones", "%d keys are more than %d", len(c.Keys), MaxKeys)
	bad(!(c.Weight > 0) || c.Weight > MaxWeight, "weight", "write 2 for twice the share of others, or leave it out for 1", "%v is not above 0 and at most %d", c.Weight, MaxWeight)
	bad(c.TokensPerMinute < 0, "tokens_per_minute", noLimit, "%d is negative", c.TokensPerMinute)
	bad(c.TokensPerMinute > MaxTokensPerMinute, "tokens_per_minute", noLimit, "%d is more than %d", c.TokensPerMinute, int64(MaxTokensPerMinute))
	bad(c.InFlight < 0, "in_flight", noLimit, "%d is negative", c.InFlight)
	for _, m := range c.Models {
		bad(m == "" || strings.Contains(strings.TrimSuffix(m, "*"), "*"), "models", "write * at the end only, or leave models out for all", "%q is neither a name nor PREFIX*", m)
	}
	for _, p := range c.Paths {
		bad(!strings.HasPrefix(p, "/"), "paths", "write it as in /v1/chat/completions, or leave paths out for all", "%q does not begin with /", p)
	}
	return mistakes
}

func (k KeyHash) head() uint64 { return binary.LittleEndian.Uint64(k[:]) }

// Find returns the client of a key, or nil. It allocates nothing.
func (b *Book) Find(key []byte) *Client { return b.find(HashKey(key)) }

// find compares whole hashes in constant time. Which bucket a key falls into tells an attacker
// nothing about other keys, since it depends on a hash of what he sends.
func (b *Book) find(hash KeyHash) *Client {
	var found *Client
	for i := range b.byKey[hash.head()] {
		k := &b.byKey[hash.head()][i]
		if subtle.ConstantTimeCompare(k.hash[:], hash[:]) == 1 {
			found = k.client
		}
	}
	return found
}

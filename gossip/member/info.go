package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
)

const (
	maxMeta  = 512  // bytes, memberlist's limit
	maxHello = 1024 // bytes: an Info, a full ring's fingerprints, later fields

	// Longest texts, in bytes.
	maxName    = 128 // twice Linux's longest host name
	maxAddr    = 255
	maxVersion = 64
	maxCluster = 64
	maxRaftID  = 64
)

var errInfo = errors.New("malformed node information")

// Info describes a node in memberlist's metadata (hence short names) and in hellos. JSON names are
// never reused, nor in other letter case.
type Info struct {
	Name        string `json:"n"`           // unique: letters, digits, '.', '-' and '_'
	Incarnation uint64 `json:"i"`           // start of the process, Unix ms
	Addr        string `json:"g,omitempty"` // gossip's host:port
	Data        string `json:"d,omitempty"`
	Admin       string `json:"a,omitempty"`
	Version     string `json:"v,omitempty"` // shown, never compared
	ProtocolMin uint8  `json:"p"`
	ProtocolMax uint8  `json:"q"`
	Cluster     string `json:"c,omitempty"`
	KeyID       uint32 `json:"k"` // of the secret and the prompt hash's version
	BlockBytes  uint32 `json:"b"`
	RaftID      string `json:"r,omitempty"`
	RaftVoter   bool   `json:"w,omitempty"`
	NoEvents    bool   `json:"e,omitempty"` // follows no engine's cache events
}

func (i *Info) validate() error {
	if i.Name == "" {
		return errors.New("a node needs a name")
	}
	for _, f := range []struct {
		what, text string
		limit      int
		ok         func(string) bool
		chars      string
	}{
		{"node name", i.Name, maxName, isName, "letters, digits, '.', '-' and '_'"},
		{"cluster name", i.Cluster, maxCluster, isName, "letters, digits, '.', '-' and '_'"},
		{"raft id", i.RaftID, maxRaftID, isName, "letters, digits, '.', '-' and '_'"},
		{"version", i.Version, maxVersion, isText, "printable characters"},
	} {
		if len(f.text) > f.limit || !f.ok(f.text) {
			return fmt.Errorf("%s %q: at most %d %s", f.what, clean(f.text, f.limit), f.limit, f.chars)
		}
	}
	for _, a := range [][2]string{{"gossip", i.Addr}, {"data", i.Data}, {"admin", i.Admin}} {
		if err := validAddr(a[1]); err != nil {
			return fmt.Errorf("%s address: %w", a[0], err)
		}
	}
	if i.ProtocolMin == 0 || i.ProtocolMin > i.ProtocolMax {
		return fmt.Errorf("protocol range %d to %d", i.ProtocolMin, i.ProtocolMax)
	}
	return nil
}

func validAddr(addr string) error {
	if addr == "" {
		return nil
	}
	if len(addr) > maxAddr || !isText(addr) {
		return fmt.Errorf("%q: at most %d printable characters", clean(addr, maxAddr), maxAddr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return fmt.Errorf("%q: want host:port", addr)
	}
	return nil
}

// meta has fields for metadata or hellos only. Readers skip unknown fields.
type meta struct {
	Info
	Leaving bool          `json:"l,omitempty"` // metadata: the node is about to leave
	Keys    []Fingerprint `json:"f,omitempty"` // hello: the keys on the ring, the primary first
	Group   uint64        `json:"u,omitempty"` // hello: see List.SetGroup
	//lint:ignore U1000 encoding/json writes it: a later release has fields here
	laterFields
}

func (c *meta) encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err == nil && len(b) > maxMeta {
		err = fmt.Errorf("name, addresses, version and cluster take %d bytes, more than %d: shorten them", len(b), maxMeta)
	}
	return b, err
}

func decodeMeta(b []byte) (c meta, err error) {
	if len(b) > maxHello {
		return c, fmt.Errorf("%w: %d bytes", errInfo, len(b))
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%w: %w", errInfo, err)
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("%w: %w", errInfo, err)
	}
	if len(c.Keys) > maxKeys {
		return c, fmt.Errorf("%w: %d keys", errInfo, len(c.Keys))
	}
	return c, nil
}

// isName reports whether s is safe in logs, metrics, certificates and addresses.
func isName(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// isText reports whether s is printable ASCII.
func isText(s string) bool { return clean(s, len(s)) == s }

// clean makes network text printable for logs and errors.
func clean(s string, limit int) string {
	b := []byte(s[:min(len(s), limit)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

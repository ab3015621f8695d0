package member

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// MaxInfo is memberlist's limit for metadata, in bytes.
const MaxInfo = 512

// maxCard bounds an Info, a full ring's fingerprints and later fields, in bytes.
const maxCard = 1024

// infoFormat is the first byte. New fields need no new format.
const infoFormat = 1

// Tags of the fields. A tag is never reused.
const (
	tagName        = 1
	tagIncarnation = 2
	tagAddr        = 3
	tagData        = 4
	tagAdmin       = 5
	tagVersion     = 6
	tagProtocol    = 7
	tagCluster     = 8
	tagKeyID       = 9
	tagBlockBytes  = 10
	// tagLeaving is in metadata only.
	tagLeaving = 11
	// Tag 12 is retired.
	tagRaftID   = 13
	tagRaftVote = 14 // 1 if the node may vote
	// tagKeys and tagGroup are in hellos only: fingerprints, the primary first; see List.SetGroup.
	tagKeys  = 32
	tagGroup = 33
)

// Longest texts, in bytes.
const (
	maxName    = 128 // twice Linux's longest host name
	maxAddr    = 255
	maxVersion = 64
	maxCluster = 64
	maxRaftID  = 64
)

var errInfo = errors.New("malformed node information")

// Info describes a node, in memberlist's metadata and in hellos. A plain value.
type Info struct {
	// Name is unique: letters, digits, '.', '-' and '_'.
	Name string
	// Incarnation is the start of the process in Unix ms.
	Incarnation uint64
	// Addr is the gossip address, host:port, that peers dial.
	Addr string
	// Data and Admin are listeners, host:port or empty.
	Data, Admin string
	// Version is the release: shown, never compared.
	Version string
	// ProtocolMin and ProtocolMax bound the versions spoken.
	ProtocolMin, ProtocolMax uint8
	Cluster                  string
	// KeyID identifies the secret and the version of the prompt hash.
	KeyID      uint32
	BlockBytes uint32
	// RaftID is empty outside Raft.
	RaftID string
	// RaftVoter means that the node may vote.
	RaftVoter bool
}

func (i *Info) validate() error {
	if i.Name == "" {
		return errors.New("a node needs a name")
	}
	if len(i.Name) > maxName || !isName(i.Name) {
		return fmt.Errorf("node name %q: at most %d letters, digits, '.', '-' and '_'", clean(i.Name, maxName), maxName)
	}
	if len(i.Cluster) > maxCluster || !isName(i.Cluster) {
		return fmt.Errorf("cluster name %q: at most %d letters, digits, '.', '-' and '_'", clean(i.Cluster, maxCluster), maxCluster)
	}
	if len(i.Version) > maxVersion || !isText(i.Version) {
		return fmt.Errorf("version %q: at most %d printable characters", clean(i.Version, maxVersion), maxVersion)
	}
	for _, a := range []struct{ what, addr string }{{"gossip", i.Addr}, {"data", i.Data}, {"admin", i.Admin}} {
		if a.addr == "" {
			continue
		}
		if err := validAddr(a.addr); err != nil {
			return fmt.Errorf("%s address: %w", a.what, err)
		}
	}
	if len(i.RaftID) > maxRaftID || !isName(i.RaftID) {
		return fmt.Errorf("raft id %q: at most %d letters, digits, '.', '-' and '_'", clean(i.RaftID, maxRaftID), maxRaftID)
	}
	if i.ProtocolMin == 0 || i.ProtocolMin > i.ProtocolMax {
		return fmt.Errorf("protocol range %d to %d", i.ProtocolMin, i.ProtocolMax)
	}
	return nil
}

// validAddr accepts host:port with a numeric port above zero.
func validAddr(addr string) error {
	if len(addr) > maxAddr || !isText(addr) {
		return fmt.Errorf("%q: at most %d printable characters", clean(addr, maxAddr), maxAddr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: no port", addr)
	}
	if host == "" {
		return fmt.Errorf("%q: no host", addr)
	}
	return nil
}

// card is an Info with the fields that only metadata or only hellos carry.
type card struct {
	Info
	leaving bool
	keys    []Fingerprint
	group   uint64
}

// appendCard appends the encoded card. Without keys it takes at most MaxInfo bytes.
func appendCard(dst []byte, c *card) ([]byte, error) {
	if err := c.validate(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(dst, infoFormat)
	text := func(tag byte, s string) {
		if s != "" {
			dst = append(append(dst, tag, byte(len(s))), s...)
		}
	}
	text(tagName, c.Name)
	dst = binary.BigEndian.AppendUint64(append(dst, tagIncarnation, 8), c.Incarnation)
	text(tagAddr, c.Addr)
	text(tagData, c.Data)
	text(tagAdmin, c.Admin)
	text(tagVersion, c.Version)
	dst = append(dst, tagProtocol, 2, c.ProtocolMin, c.ProtocolMax)
	text(tagCluster, c.Cluster)
	dst = binary.BigEndian.AppendUint32(append(dst, tagKeyID, 4), c.KeyID)
	dst = binary.BigEndian.AppendUint32(append(dst, tagBlockBytes, 4), c.BlockBytes)
	if c.leaving {
		dst = append(dst, tagLeaving, 0)
	}
	text(tagRaftID, c.RaftID)
	if c.RaftVoter {
		dst = append(dst, tagRaftVote, 1, 1)
	}
	dst = laterTags(dst)
	if n := len(dst) - start; n > MaxInfo {
		return dst[:start], fmt.Errorf("name, addresses, version and cluster take %d bytes, more than %d: shorten them", n, MaxInfo)
	}
	if len(c.keys) > 0 {
		dst = append(dst, tagKeys, byte(len(c.keys)*len(Fingerprint{})))
		for _, f := range c.keys {
			dst = append(dst, f[:]...)
		}
	}
	if c.group != 0 {
		dst = binary.BigEndian.AppendUint64(append(dst, tagGroup, 8), c.group)
	}
	return dst, nil
}

// decodeCard keeps no reference to b and allocates at most len(b).
func decodeCard(b []byte) (card, error) {
	var (
		c    card
		seen [256]bool
	)
	if len(b) == 0 {
		return c, fmt.Errorf("%w: empty", errInfo)
	}
	if len(b) > maxCard {
		return c, fmt.Errorf("%w: %d bytes", errInfo, len(b))
	}
	if b[0] != infoFormat {
		return c, fmt.Errorf("%w: format %d, this node reads format %d: upgrade the older of both", errInfo, b[0], infoFormat)
	}
	for b = b[1:]; len(b) > 0; {
		if len(b) < 2 || len(b)-2 < int(b[1]) {
			return c, fmt.Errorf("%w: cut short", errInfo)
		}
		tag, v := b[0], b[2:2+int(b[1])]
		b = b[2+len(v):]
		if seen[tag] {
			return c, fmt.Errorf("%w: field %d twice", errInfo, tag)
		}
		seen[tag] = true
		if !c.field(tag, v) {
			return c, fmt.Errorf("%w: field %d is %d bytes long", errInfo, tag, len(v))
		}
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("%w: %w", errInfo, err)
	}
	return c, nil
}

// field reports whether v has a valid length; unknown tags are skipped.
func (c *card) field(tag byte, v []byte) bool {
	switch tag {
	case tagName:
		c.Name = string(v)
	case tagAddr:
		c.Addr = string(v)
	case tagData:
		c.Data = string(v)
	case tagAdmin:
		c.Admin = string(v)
	case tagVersion:
		c.Version = string(v)
	case tagCluster:
		c.Cluster = string(v)
	case tagIncarnation:
		if len(v) != 8 {
			return false
		}
		c.Incarnation = binary.BigEndian.Uint64(v)
	case tagProtocol:
		if len(v) != 2 {
			return false
		}
		c.ProtocolMin, c.ProtocolMax = v[0], v[1]
	case tagKeyID:
		if len(v) != 4 {
			return false
		}
		c.KeyID = binary.BigEndian.Uint32(v)
	case tagBlockBytes:
		if len(v) != 4 {
			return false
		}
		c.BlockBytes = binary.BigEndian.Uint32(v)
	case tagLeaving:
		c.leaving = true
	case tagRaftID:
		c.RaftID = string(v)
	case tagRaftVote:
		if len(v) < 1 { // a later release may append
			return false
		}
		c.RaftVoter = v[0]&1 != 0
	case tagGroup:
		if len(v) != 8 {
			return false
		}
		c.group = binary.BigEndian.Uint64(v)
	case tagKeys:
		const n = len(Fingerprint{})
		if len(v)%n != 0 || len(v) > maxKeys*n {
			return false
		}
		for ; len(v) > 0; v = v[n:] {
			c.keys = append(c.keys, Fingerprint(v[:n]))
		}
	}
	return true
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
func isText(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

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

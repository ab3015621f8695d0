package member

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// KeyOp is an operation on the fleet's keyrings.
type KeyOp uint8

// Operations on keyrings. The numbers are on the wire.
const (
	// KeyList returns the fingerprints of a node's keys.
	KeyList KeyOp = 1
	// KeyInstall appends a key to the rings.
	KeyInstall KeyOp = 2
	// KeyUse makes a key the primary.
	KeyUse KeyOp = 3
	// KeyRemove takes a key off the rings.
	KeyRemove KeyOp = 4
)

func (op KeyOp) String() string {
	switch op {
	case KeyList:
		return "list"
	case KeyInstall:
		return "install"
	case KeyUse:
		return "use"
	case KeyRemove:
		return "remove"
	}
	return "unknown"
}

// KeyResult is one member's answer to a key operation.
type KeyResult struct {
	Member Info
	// Keys is the ring after the operation, the primary first.
	Keys []KeyInfo
	// Persisted means that the ring survives a restart.
	Persisted bool
	Err       error
}

func (r *KeyResult) has(f Fingerprint) (on, primary bool) {
	for _, k := range r.Keys {
		if k.Fingerprint == f {
			return true, k.Primary
		}
	}
	return false, false
}

const (
	keyAskTimeout = 10 * time.Second
	keyAskers     = 16
	keysVersion   = 1
)

var (
	ErrKeyNotEverywhere = errors.New("not every live member has the key: install it first")
	ErrKeyInUse         = errors.New("the key is the primary one of a live member: use another one first")
)

// RotateKey does an operation on every live member, then on this node, and returns the answers,
// this node first, then by name. key has 16, 24 or 32 bytes; KeyUse and KeyRemove also take its
// fingerprint, KeyList nil. Operations may be repeated.
//
// KeyUse requires that every live member answers and has the key (ErrKeyNotEverywhere); KeyRemove,
// that each has another primary (ErrKeyInUse). Else nothing changes. Both ends close streams under
// a removed key. The error is nil only if every member succeeded.
func (l *List) RotateKey(ctx context.Context, op KeyOp, key []byte) ([]KeyResult, error) {
	if _, err := l.running(); err != nil {
		return nil, err
	}
	which, err := checkKeyRequest(op, key)
	if err != nil {
		return nil, err
	}
	if l.ring.packets == nil {
		return nil, errNoRing
	}
	if op == KeyUse || op == KeyRemove {
		results := l.askAll(ctx, KeyList, nil)
		for i := range results {
			r := &results[i]
			on, primary := r.has(which)
			switch {
			case r.Err != nil:
				err = fmt.Errorf("%s cannot be asked, so nothing was changed: %w", r.Member.Name, r.Err)
			case op == KeyUse && !on:
				err = fmt.Errorf("%s: %w", r.Member.Name, ErrKeyNotEverywhere)
			case op == KeyRemove && primary:
				err = fmt.Errorf("%s: %w", r.Member.Name, ErrKeyInUse)
			default:
				continue
			}
			return results, err
		}
	}
	results := l.askAll(ctx, op, key)
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Member.Name, r.Err))
		}
	}
	return results, errors.Join(errs...)
}

func checkKeyRequest(op KeyOp, key []byte) (Fingerprint, error) {
	switch op {
	case KeyList:
		if len(key) != 0 {
			return Fingerprint{}, errors.New("a list takes no key")
		}
		return Fingerprint{}, nil
	case KeyUse, KeyRemove:
		if len(key) == len(Fingerprint{}) {
			return Fingerprint(key), nil
		}
	case KeyInstall:
	default:
		return Fingerprint{}, fmt.Errorf("no such operation: %d", op)
	}
	if err := checkKey(key); err != nil {
		return Fingerprint{}, fmt.Errorf("gossip key: %w", err)
	}
	return FingerprintOf(key), nil
}

func (l *List) askAll(ctx context.Context, op KeyOp, key []byte) []KeyResult {
	results := []KeyResult{{Member: l.Self()}}
	for _, m := range l.Members() {
		if m.State == StateAlive {
			results = append(results, KeyResult{Member: m.Info})
		}
	}
	// Members first: this node must still reach a member that uses the removed key.
	each(len(results)-1, keyAskers, func(i int) {
		r := &results[i+1]
		r.Keys, r.Persisted, r.Err = l.ask(ctx, r.Member, op, key)
	})
	own := &results[0]
	own.Err = l.doKey(op, key, Fingerprint{})
	own.Keys, own.Persisted = l.ring.list(), l.ring.file != ""
	return results
}

func (l *List) ask(ctx context.Context, m Info, op KeyOp, key []byte) ([]KeyInfo, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, keyAskTimeout)
	defer cancel()
	c, err := l.dial(ctx, m.Addr, alpnKeys)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = c.Close() }()
	if c.Peer.Name != m.Name {
		return nil, false, errNameless
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if _, err := c.Write(appendKeyRequest(nil, op, key)); err != nil {
		return nil, false, err
	}
	return readKeyReply(c)
}

func (l *List) serveKeys(c *Conn) {
	op, key, err := readKeyRequest(c)
	if err != nil {
		l.log.Warn().Str("peer", c.Peer.Name).Err(err).Msg("key operation not understood")
		return
	}
	err = l.doKey(op, key, c.keys[1])
	if op != KeyList {
		e := l.log.Info()
		if err != nil {
			e = l.log.Error().Err(err)
		}
		e.Str("peer", c.Peer.Name).Stringer("op", op).Msg("gossip keys changed by a peer's wish")
	}
	reply := appendKeyReply(nil, l.ring.list(), l.ring.file != "", err)
	if _, err := c.Write(reply); err != nil {
		l.log.Debug().Str("peer", c.Peer.Name).Err(err).Msg("answer to a key operation not sent")
		return
	}
	closeGently(c.raw)
}

// doKey acts for the holder of key under; zero means this node, or the operator's TLS.
func (l *List) doKey(op KeyOp, key []byte, under Fingerprint) error {
	which, err := checkKeyRequest(op, key)
	if err != nil {
		return err
	}
	switch op {
	case KeyInstall:
		return l.ring.install(key, under)
	case KeyUse:
		return l.ring.use(which, under)
	case KeyRemove:
		err := l.ring.remove(which, under)
		l.conns.dropForeign()
		return err
	}
	return nil
}

// appendKeyRequest appends version, operation, length of key, key.
func appendKeyRequest(dst []byte, op KeyOp, key []byte) []byte {
	dst = append(dst, keysVersion, byte(op), byte(len(key)))
	return append(dst, key...)
}

func readKeyRequest(r io.Reader) (KeyOp, []byte, error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	if head[0] != keysVersion {
		return 0, nil, fmt.Errorf("%w: key request of version %d", errInfo, head[0])
	}
	if head[2] > 32 {
		return 0, nil, fmt.Errorf("%w: key of %d bytes", errInfo, head[2])
	}
	key := make([]byte, head[2])
	_, err := io.ReadFull(r, key)
	return KeyOp(head[1]), key, err
}

// appendKeyReply appends version, flags, number of keys, fingerprints, length of text, text. An
// empty text means success.
func appendKeyReply(dst []byte, keys []KeyInfo, persisted bool, err error) []byte {
	var flags byte
	if persisted {
		flags = 1
	}
	dst = append(dst, keysVersion, flags, byte(len(keys)))
	for _, k := range keys {
		dst = append(dst, k.Fingerprint[:]...)
	}
	text := clean(errText(err), maxReason)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

func readKeyReply(r io.Reader) (keys []KeyInfo, persisted bool, err error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, false, err
	}
	if head[0] != keysVersion || head[2] > maxKeys {
		return nil, false, fmt.Errorf("%w: reply to a key operation", errInfo)
	}
	for i := range int(head[2]) {
		k := KeyInfo{Primary: i == 0}
		if _, err := io.ReadFull(r, k.Fingerprint[:]); err != nil {
			return nil, false, err
		}
		keys = append(keys, k)
	}
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, false, err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > maxReason {
		return nil, false, fmt.Errorf("%w: reason of %d bytes", errInfo, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, false, err
	}
	if n > 0 {
		err = errors.New(clean(string(text), maxReason))
	}
	return keys, head[1]&1 != 0, err
}

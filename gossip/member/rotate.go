package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// KeyOp is an operation on keyrings; the texts are on the wire.
type KeyOp string

const (
	KeyList    KeyOp = "list"
	KeyInstall KeyOp = "install"
	KeyUse     KeyOp = "use" // makes a key the primary
	KeyRemove  KeyOp = "remove"
)

// KeyResult is one member's answer to a key operation.
type KeyResult struct {
	Member    Info
	Keys      []Fingerprint // after the operation, the primary first
	Persisted bool          // survives a restart
	Err       error
}

// keyRequest and keyReply are the messages of grapevine-keys/1.
type keyRequest struct {
	Op  KeyOp  `json:"op"`
	Key []byte `json:"key,omitempty"` // or its fingerprint
}

type keyReply struct {
	Keys      []Fingerprint `json:"keys"`
	Persisted bool          `json:"persisted"`
	Error     string        `json:"error,omitempty"`
}

const (
	keyTimeout  = 10 * time.Second
	keyParallel = 16
)

var (
	ErrKeyNotEverywhere = errors.New("not every live member has the key: install it first")
	ErrKeyInUse         = errors.New("the key is the primary one of a live member: use another one first")
)

// RotateKey does an operation on every live member, then here; the answers are in that order, this
// node's first. KeyUse and KeyRemove also take a fingerprint as key, KeyList nil. KeyUse needs the
// key on every live member, KeyRemove another primary on each; else nothing changes. Operations may
// be repeated.
func (l *List) RotateKey(ctx context.Context, op KeyOp, key []byte) ([]KeyResult, error) {
	if _, err := l.port(lifeRunning); err != nil {
		return nil, err
	}
	request := keyRequest{op, key}
	which, err := request.check()
	if err != nil {
		return nil, err
	}
	if l.ring.packets == nil {
		return nil, errNoRing
	}
	if op == KeyUse || op == KeyRemove {
		results := l.requestAll(ctx, keyRequest{Op: KeyList})
		for i := range results {
			r := &results[i]
			at := slices.Index(r.Keys, which)
			switch {
			case r.Err != nil:
				err = fmt.Errorf("%s does not answer, so nothing was changed: %w", r.Member.Name, r.Err)
			case op == KeyUse && at < 0:
				err = fmt.Errorf("%s: %w", r.Member.Name, ErrKeyNotEverywhere)
			case op == KeyRemove && at == 0:
				err = fmt.Errorf("%s: %w", r.Member.Name, ErrKeyInUse)
			default:
				continue
			}
			return results, err
		}
	}
	results := l.requestAll(ctx, request)
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Member.Name, r.Err))
		}
	}
	return results, errors.Join(errs...)
}

func (r keyRequest) check() (Fingerprint, error) {
	switch {
	case r.Op == KeyList && len(r.Key) == 0:
		return Fingerprint{}, nil
	case r.Op == KeyList:
		return Fingerprint{}, errors.New("a list takes no key")
	case r.Op != KeyInstall && r.Op != KeyUse && r.Op != KeyRemove:
		return Fingerprint{}, fmt.Errorf("unknown key operation %q", clean(string(r.Op), maxName))
	case r.Op != KeyInstall && len(r.Key) == len(Fingerprint{}):
		return Fingerprint(r.Key), nil
	}
	if err := checkKey(r.Key); err != nil {
		return Fingerprint{}, fmt.Errorf("gossip key: %w", err)
	}
	return FingerprintOf(r.Key), nil
}

func (l *List) requestAll(ctx context.Context, request keyRequest) []KeyResult {
	results := []KeyResult{{Member: l.Self()}}
	for _, m := range l.Members() {
		if m.State == StateAlive {
			results = append(results, KeyResult{Member: m.Info})
		}
	}
	// Members first: this node must still reach a member that uses the removed key.
	each(len(results)-1, keyParallel, func(i int) { l.request(ctx, &results[i+1], request) })
	own := &results[0]
	own.Err = l.rotateOwn(request, Fingerprint{})
	own.Keys, own.Persisted = l.Keys(), l.ring.file != ""
	return results
}

func (l *List) request(ctx context.Context, r *KeyResult, request keyRequest) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	c, err := l.dial(ctx, r.Member.Addr, alpnKeys)
	if err != nil {
		r.Err = err
		return
	}
	defer func() { _ = c.Close() }()
	if c.Peer.Name != r.Member.Name {
		r.Err = fmt.Errorf("%q answers at its address", c.Peer.Name)
		return
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	var reply keyReply
	if r.Err = writeMessage(c, request); r.Err == nil {
		r.Err = readMessage(c, &reply)
	}
	switch {
	case r.Err != nil:
	case len(reply.Keys) > maxKeys:
		r.Err = fmt.Errorf("%w: %d keys", errInfo, len(reply.Keys))
	case reply.Error != "":
		r.Err = errors.New(clean(reply.Error, maxReason))
		fallthrough
	default:
		r.Keys, r.Persisted = reply.Keys, reply.Persisted
	}
}

func (l *List) serveKeys(c *Conn) {
	var request keyRequest
	if err := readMessage(c, &request); err != nil {
		l.log.Warn().Str("peer", c.Peer.Name).Err(err).Msg("operation on gossip keys not understood")
		return
	}
	err := l.rotateOwn(request, c.keys[1])
	if request.Op != KeyList {
		e := l.log.Info()
		if err != nil {
			e = l.log.Error().Err(err)
		}
		e.Str("event", EventKeysChanged).Str("peer", c.Peer.Name).Str("op", clean(string(request.Op), maxName)).Msg("peer changes gossip keys")
	}
	reply := keyReply{Keys: l.Keys(), Persisted: l.ring.file != ""}
	if err != nil {
		reply.Error = clean(err.Error(), maxReason)
	}
	if err := writeMessage(c, reply); err != nil {
		l.log.Debug().Str("peer", c.Peer.Name).Err(err).Msg("answer to an operation on gossip keys not sent")
		return
	}
	closeGently(c.raw)
}

// under is zero for this node or the operator's TLS.
func (l *List) rotateOwn(request keyRequest, under Fingerprint) error {
	which, err := request.check()
	if err != nil || request.Op == KeyList {
		return err
	}
	err = l.ring.change(request.Op, request.Key, which, under)
	if request.Op == KeyRemove {
		l.conns.closeRemoved()
	}
	return err
}

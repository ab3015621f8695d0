package member

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
)

// helloMagic ends with the version of the exchange.
const helloMagic = "GVH\x01"

const maxReason = 512

type verdict uint8

const (
	verdictWelcome verdict = iota
	// verdictMismatch: the text serves dialers that do not know the field.
	verdictMismatch
	// verdictName: the text is the address of the member with this name.
	verdictName
	// verdictBusy: the acceptor is starting or leaving.
	verdictBusy
	// verdictRaftID: the text names the member with this raft id.
	verdictRaftID
)

// appendHello appends magic, length, card.
func appendHello(dst []byte, c *card) ([]byte, error) {
	at := len(dst) + len(helloMagic)
	dst = append(dst, helloMagic...)
	dst = append(dst, 0, 0)
	dst, err := appendCard(dst, c)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(len(dst)-at-2))
	return dst, nil
}

func readHello(r io.Reader) (card, error) {
	var head [len(helloMagic) + 2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return card{}, err
	}
	if string(head[:len(helloMagic)]) != helloMagic {
		return card{}, fmt.Errorf("%w: no hello", errInfo)
	}
	n := binary.BigEndian.Uint16(head[len(helloMagic):])
	if n > maxCard {
		return card{}, fmt.Errorf("%w: hello of %d bytes", errInfo, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return card{}, err
	}
	c, err := decodeCard(body)
	if err == nil && c.Addr == "" {
		err = fmt.Errorf("%w: no gossip address", errInfo)
	}
	return c, err
}

// appendVerdict appends code, length, text.
func appendVerdict(dst []byte, v verdict, text string) []byte {
	text = clean(text, maxReason)
	dst = append(dst, byte(v))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

func readVerdict(r io.Reader) (verdict, string, error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, "", err
	}
	n := binary.BigEndian.Uint16(head[1:])
	if n > maxReason {
		return 0, "", fmt.Errorf("%w: verdict of %d bytes", errInfo, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return 0, "", err
	}
	return verdict(head[0]), clean(string(text), maxReason), nil
}

// compatible also checks the raft groups, and that each side has the other's primary key, which
// handshakes with the operator's certificates do not show.
func compatible(mine, theirs *card) error {
	if err := Compatible(mine.Info, theirs.Info); err != nil {
		return err
	}
	primary := func(c *card) Fingerprint {
		if len(c.keys) == 0 {
			return noKeyPrint
		}
		return c.keys[0]
	}
	if m, t := primary(mine), primary(theirs); m != t && (!slices.Contains(mine.keys, t) || !slices.Contains(theirs.keys, m)) {
		return &MismatchError{Field: FieldGossipKey, Mine: keyText(m), Theirs: keyText(t), Peer: theirs.Addr}
	}
	if mine.group != 0 && theirs.group != 0 && mine.group != theirs.group {
		return &MismatchError{Field: FieldGroup, Mine: groupText(mine.group), Theirs: groupText(theirs.group), Peer: theirs.Addr}
	}
	return nil
}

func groupText(id uint64) string { return fmt.Sprintf("%016x", id) }

// greet exchanges hellos with the node dialed at addr.
func (l *List) greet(c net.Conn, addr string, proof *peerProof) (card, error) {
	mine := l.card()
	hello, err := appendHello(nil, &mine)
	if err != nil {
		return card{}, err
	}
	if _, err := c.Write(hello); err != nil {
		return card{}, l.secure.explain(err, addr, proof)
	}
	theirs, err := readHello(c)
	if err != nil {
		return card{}, l.secure.explain(err, addr, proof)
	}
	v, text, err := readVerdict(c)
	if err != nil {
		return card{}, fmt.Errorf("%s: hello not answered: %w", addr, err)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return card{}, err
	}
	if err := l.secure.named(proof, theirs.Name, host); err != nil {
		return card{}, fmt.Errorf("%s: %w", addr, err)
	}
	if err := compatible(&mine, &theirs); err != nil {
		return theirs, err
	}
	switch v {
	case verdictWelcome:
		return theirs, nil
	case verdictName:
		return theirs, &MismatchError{Field: FieldName, Mine: mine.Addr, Theirs: text, Peer: mine.Name}
	case verdictRaftID:
		return theirs, &MismatchError{Field: FieldRaftID, Mine: mine.Addr, Theirs: text, Peer: mine.Name}
	case verdictMismatch:
		return theirs, fmt.Errorf("%s: %w: %s", addr, ErrRefused, text)
	default:
		return theirs, fmt.Errorf("%s refuses this node: %s", addr, text)
	}
}

// answer answers the hello on an accepted connection.
func (l *List) answer(c net.Conn, addr string, proof *peerProof) (card, error) {
	mine := l.card()
	reply, err := appendHello(nil, &mine)
	if err != nil {
		return card{}, err
	}
	theirs, err := readHello(c)
	if err != nil {
		return card{}, l.secure.explain(err, addr, proof)
	}
	v, text := verdictWelcome, ""
	host, _, err := net.SplitHostPort(theirs.Addr)
	if err != nil {
		return theirs, err
	}
	refusal := l.secure.named(proof, theirs.Name, host)
	if refusal == nil {
		refusal = compatible(&mine, &theirs)
	}
	if refusal != nil {
		v, text = verdictMismatch, refusal.Error()
	} else if holder := l.table.holder(&theirs.Info); holder != "" {
		v, text = verdictName, holder
		refusal = &MismatchError{Field: FieldName, Mine: holder, Theirs: theirs.Addr, Peer: theirs.Name}
	} else if holder := l.table.raftIDHolder(&theirs.Info); holder != "" {
		v, text = verdictRaftID, holder
		refusal = &MismatchError{Field: FieldRaftID, Mine: holder, Theirs: theirs.Addr, Peer: theirs.Name}
	} else if _, err := l.running(); err != nil {
		v, text, refusal = verdictBusy, "it is starting", errStarting
	} else if l.leaving.Load() {
		v, text, refusal = verdictBusy, "it is leaving", errLeaving
	}
	if _, err := c.Write(appendVerdict(reply, v, text)); err != nil && refusal == nil {
		return theirs, fmt.Errorf("%s: %w", addr, err)
	}
	return theirs, refusal
}

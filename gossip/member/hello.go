package member

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
)

const (
	maxMessage = 2048 // bytes: a meta, or a key operation's answer
	maxReason  = 512  // bytes
)

// The length (u16 big-endian), then the JSON of v.
func writeMessage(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...))
	return err
}

func readMessage(r io.Reader, v any) error {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > maxMessage {
		return fmt.Errorf("%w: message of %d bytes", errInfo, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %w", errInfo, err)
	}
	return nil
}

type verdict struct {
	Refusal string `json:"refusal,omitempty"` // empty: welcome
	Later   bool   `json:"later,omitempty"`   // the acceptor is starting or leaving
	// Taken is the name or raft id that Holder, another member, has.
	Taken  Field  `json:"taken,omitempty"`
	Holder string `json:"holder,omitempty"`
}

func readHello(r io.Reader) (meta, error) {
	var text json.RawMessage
	if err := readMessage(r, &text); err != nil {
		return meta{}, err
	}
	c, err := decodeMeta(text)
	if err == nil && c.Addr == "" {
		err = fmt.Errorf("%w: no gossip address", errInfo)
	}
	return c, err
}

// compatible also checks raft groups, and primary keys, which operators' certificates do not show.
func compatible(mine, theirs *meta) error {
	if err := Compatible(mine.Info, theirs.Info); err != nil {
		return err
	}
	primary := func(c *meta) Fingerprint {
		if len(c.Keys) == 0 {
			return noKeyPrint
		}
		return c.Keys[0]
	}
	if m, t := primary(mine), primary(theirs); m != t && (!slices.Contains(mine.Keys, t) || !slices.Contains(theirs.Keys, m)) {
		return &MismatchError{Field: FieldGossipKey, Mine: keyText(m), Theirs: keyText(t), Peer: theirs.Addr}
	}
	if mine.Group != 0 && theirs.Group != 0 && mine.Group != theirs.Group {
		return &MismatchError{Field: FieldGroup, Mine: groupText(mine.Group), Theirs: groupText(theirs.Group), Peer: theirs.Addr}
	}
	return nil
}

func groupText(id uint64) string { return fmt.Sprintf("%016x", id) }

func (l *List) greet(c net.Conn, addr string, proof *peerProof) (Info, error) {
	mine := l.meta()
	if err := writeMessage(c, &mine); err != nil {
		return Info{}, l.secure.explain(err, addr, proof)
	}
	theirs, err := readHello(c)
	if err != nil {
		return Info{}, l.secure.explain(err, addr, proof)
	}
	var v verdict
	if err := readMessage(c, &v); err != nil {
		return Info{}, fmt.Errorf("%s: hello not answered: %w", addr, err)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return Info{}, err
	}
	if err := l.secure.named(proof, theirs.Name, host); err != nil {
		return Info{}, fmt.Errorf("%s: %w", addr, err)
	}
	if err := compatible(&mine, &theirs); err != nil {
		return theirs.Info, err
	}
	switch {
	case v.Refusal == "":
		return theirs.Info, nil
	case v.Taken == FieldName || v.Taken == FieldRaftID:
		return theirs.Info, &MismatchError{Field: v.Taken, Mine: mine.Addr, Theirs: clean(v.Holder, maxAddr), Peer: mine.Name}
	case v.Later:
		return theirs.Info, fmt.Errorf("%s does not take streams now: %s", addr, clean(v.Refusal, maxReason))
	}
	return theirs.Info, fmt.Errorf("%s: %w: %s", addr, ErrRefused, clean(v.Refusal, maxReason))
}

// The error is the refusal.
func (l *List) answer(c net.Conn, addr string, proof *peerProof) (Info, error) {
	theirs, err := readHello(c)
	if err != nil {
		return Info{}, l.secure.explain(err, addr, proof)
	}
	mine := l.meta()
	refusal := l.judge(&mine, &theirs, proof)
	var v verdict
	if refusal != nil {
		v.Refusal = clean(refusal.Error(), maxReason)
		v.Later = errors.Is(refusal, errStarting) || errors.Is(refusal, errLeaving)
		if m, ok := errors.AsType[*MismatchError](refusal); ok && (m.Field == FieldName || m.Field == FieldRaftID) {
			v.Taken, v.Holder = m.Field, m.Mine
		}
	}
	if err := errors.Join(writeMessage(c, &mine), writeMessage(c, &v)); err != nil && refusal == nil {
		return theirs.Info, fmt.Errorf("%s: %w", addr, err)
	}
	return theirs.Info, refusal
}

func (l *List) judge(mine, theirs *meta, proof *peerProof) error {
	host, _, err := net.SplitHostPort(theirs.Addr)
	if err != nil {
		return err
	}
	if err := l.secure.named(proof, theirs.Name, host); err != nil {
		return err
	}
	if err := compatible(mine, theirs); err != nil {
		return err
	}
	if err := l.table.conflict(&theirs.Info); err != nil {
		return err
	}
	if _, err := l.port(lifeRunning); err != nil {
		return errStarting
	}
	if l.leaving.Load() {
		return errLeaving
	}
	return nil
}

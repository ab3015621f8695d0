package raftstore

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// errUnknownCommand means an entry of a newer program.
var errUnknownCommand = errors.New("command of an unknown version")

// commandKinds numbers the commands in the log from 1. Places are never reused.
var commandKinds = []reflect.Type{
	reflect.TypeFor[AddBackends](), reflect.TypeFor[UpdateBackend](), reflect.TypeFor[SetBackendState](),
	reflect.TypeFor[NewGeneration](), reflect.TypeFor[RemoveBackends](), reflect.TypeFor[SetRules](),
	reflect.TypeFor[SetHot](), reflect.TypeFor[SetSwitches](), reflect.TypeFor[SetConstants](),
}

// requestID makes a repeated command take effect once.
type requestID [16]byte

type entry struct {
	request requestID
	at      int64
	command Command
}

type entryHeader struct {
	Format  uint8
	Kind    uint8
	Request requestID
	At      int64 // unix ms at the node that was asked
}

func (e entry) encode() []byte {
	kind := 1 + slices.Index(commandKinds, reflect.TypeOf(e.command))
	raw, format := encodeOldest(encode(nil, entryHeader{firstFormat, uint8(kind), e.request, e.at}), e.command)
	raw[0] = format
	return raw
}

// decodeEntry returns errUnknownCommand for a newer program's entry, other errors for damage.
func decodeEntry(b []byte) (entry, error) {
	if len(b) > MaxCommandBytes {
		return entry{}, fmt.Errorf("command of %d bytes, at most %d are allowed", len(b), MaxCommandBytes)
	}
	if len(b) > 0 && (b[0] < firstFormat || b[0] > newestFormat) {
		return entry{}, fmt.Errorf("%w: format %d", errUnknownCommand, b[0])
	}
	d := &decoder{b: b}
	var h entryHeader
	d.value(reflect.ValueOf(&h).Elem())
	switch {
	case d.err != nil:
		return entry{}, d.err
	case h.Kind == 0 || int(h.Kind) > len(commandKinds):
		return entry{}, fmt.Errorf("%w: kind %d", errUnknownCommand, h.Kind)
	}
	d.format = h.Format
	command := reflect.New(commandKinds[h.Kind-1]).Elem()
	d.value(command)
	if err := d.done(); err != nil {
		return entry{}, fmt.Errorf("command of kind %d: %w", h.Kind, err)
	}
	return entry{h.Request, h.At, command.Interface().(Command)}, nil
}

package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// commandFormat is the version of log entries; a node stops at an unknown one.
const commandFormat = 1

// errUnknownCommand means an entry of a newer program.
var errUnknownCommand = errors.New("command of an unknown version")

// requestID makes a repeated command take effect once.
type requestID [16]byte

// entry is a command in the log:
//
//	format   1 byte, 1
//	kind     1 byte
//	request  16 bytes, random
//	time     varint, unix ms at the node that was asked
//	body     by kind, to the end
//
// Strings and lists begin with their length as a uvarint, optional fields with a byte for presence.
type entry struct {
	request requestID
	at      int64
	command Command
}

func (e entry) encode() []byte {
	dst := make([]byte, 0, 128)
	dst = append(dst, commandFormat, byte(e.command.kind()))
	dst = append(dst, e.request[:]...)
	dst = binary.AppendVarint(dst, e.at)
	switch c := e.command.(type) {
	case AddBackends:
		dst = binary.AppendUvarint(dst, uint64(len(c.Backends)))
		for _, b := range c.Backends {
			dst = appendSpec(dst, b)
		}
	case UpdateBackend:
		dst = appendUpdate(dst, c)
	case SetBackendState:
		dst = append(dst, byte(c.Action), byte(c.By))
		dst = appendString(dst, c.Reason)
		dst = appendStrings(dst, c.Names)
		dst = binary.AppendUvarint(dst, uint64(len(c.IfVersions)))
		for _, v := range c.IfVersions {
			dst = binary.AppendUvarint(dst, v)
		}
	case NewGeneration:
		dst = appendString(dst, c.Name)
		dst = binary.AppendUvarint(dst, uint64(c.From))
	case RemoveBackends:
		dst = appendStrings(dst, c.Names)
	case SetRules:
		dst = appendOptional(dst, c.IfVersion, binary.AppendUvarint)
		dst = appendString(dst, c.Text)
	case SetHot:
		dst = appendHotChanges(dst, c.Changes)
	case SetSwitches:
		dst = appendBool(dst, c.Switches.Hot)
	case SetConstants:
		dst = appendConstants(dst, c.Constants)
	default:
		panic(fmt.Sprintf("raftstore: command %T has no encoding", e.command))
	}
	return dst
}

func appendSpec(dst []byte, b Backend) []byte {
	dst = appendString(dst, b.Name)
	dst = appendString(dst, b.URL)
	dst = appendStrings(dst, b.Models)
	dst = appendFloat(dst, b.Weight)
	dst = binary.AppendVarint(dst, b.KVTokens)
	return append(dst, byte(b.Source))
}

func appendOptional[T any](dst []byte, v *T, add func([]byte, T) []byte) []byte {
	if v == nil {
		return append(dst, 0)
	}
	return add(append(dst, 1), *v)
}

func appendUpdate(dst []byte, c UpdateBackend) []byte {
	dst = appendString(dst, c.Name)
	dst = appendOptional(dst, c.IfVersion, binary.AppendUvarint)
	dst = appendOptional(dst, c.URL, appendString)
	dst = appendOptional(dst, c.Models, appendStrings)
	dst = appendOptional(dst, c.Weight, appendFloat)
	dst = appendOptional(dst, c.KVTokens, binary.AppendVarint)
	return appendOptional(dst, c.Source, func(dst []byte, s Source) []byte { return append(dst, byte(s)) })
}

func appendHotChanges(dst []byte, changes []HotChange) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(changes)))
	for _, h := range changes {
		dst = binary.BigEndian.AppendUint64(dst, h.Anchor)
		dst = appendBool(dst, h.Remove)
		if h.Remove {
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(h.Depth))
		dst = binary.AppendUvarint(dst, uint64(h.R))
		dst = binary.AppendVarint(dst, h.Expires)
	}
	return dst
}

func appendConstants(dst []byte, c Constants) []byte {
	dst = binary.AppendUvarint(dst, uint64(c.KeyID))
	dst = binary.AppendUvarint(dst, uint64(c.BlockBytes))
	return appendString(dst, c.Cluster)
}

// decodeEntry returns errUnknownCommand for a newer program's entry; other errors mean damage.
func decodeEntry(b []byte) (entry, error) {
	if len(b) > MaxCommandBytes {
		return entry{}, fmt.Errorf("command of %d bytes, at most %d are allowed", len(b), MaxCommandBytes)
	}
	d := &decoder{b: b}
	if format := d.byte(); d.err == nil && format != commandFormat {
		return entry{}, fmt.Errorf("%w: format %d", errUnknownCommand, format)
	}
	kind := commandKind(d.byte())
	var e entry
	copy(e.request[:], d.take(len(e.request)))
	e.at = d.int()
	switch kind {
	case kindAddBackends:
		e.command = d.addBackends()
	case kindUpdateBackend:
		e.command = d.updateBackend()
	case kindSetBackendState:
		e.command = d.setBackendState()
	case kindNewGeneration:
		e.command = NewGeneration{Name: d.string(MaxNameBytes), From: uint32(d.uint(math.MaxUint32))}
	case kindRemoveBackends:
		e.command = RemoveBackends{Names: d.strings(MaxBackends, MaxNameBytes)}
	case kindSetRules:
		e.command = SetRules{IfVersion: optional(d, d.version), Text: d.string(MaxRulesBytes)}
	case kindSetHot:
		e.command = d.setHot()
	case kindSetSwitches:
		e.command = SetSwitches{Switches{Hot: d.bool()}}
	case kindSetConstants:
		e.command = SetConstants{d.constants()}
	default:
		if d.err == nil {
			return entry{}, fmt.Errorf("%w: kind %d", errUnknownCommand, kind)
		}
	}
	if err := d.done(); err != nil {
		return entry{}, fmt.Errorf("command of kind %d: %w", kind, err)
	}
	return e, nil
}

func (d *decoder) enum(last byte) byte {
	v := d.byte()
	if v > last {
		d.fail(fmt.Errorf("%d is above %d", v, last))
	}
	return v
}

func (d *decoder) version() uint64 { return d.uint(math.MaxUint64) }

func optional[T any](d *decoder, read func() T) *T {
	if !d.bool() {
		return nil
	}
	v := read()
	return &v
}

func (d *decoder) author() Author   { return Author(d.enum(byte(ByHealth))) }
func (d *decoder) name() string     { return d.string(MaxNameBytes) }
func (d *decoder) url() string      { return d.string(MaxURLBytes) }
func (d *decoder) models() []string { return d.strings(MaxModels, MaxNameBytes) }
func (d *decoder) source() Source   { return Source(d.enum(byte(Admin))) }

func (d *decoder) addBackends() AddBackends {
	// five lengths or numbers of a byte, and a float
	list := make([]Backend, d.count(MaxBackends, 13))
	for i := range list {
		list[i] = d.spec()
	}
	return AddBackends{list}
}

func (d *decoder) spec() Backend {
	return Backend{
		Name: d.name(), URL: d.url(), Models: d.models(),
		Weight: d.float(), KVTokens: d.int(), Source: d.source(),
	}
}

func (d *decoder) updateBackend() UpdateBackend {
	return UpdateBackend{
		Name: d.name(), IfVersion: optional(d, d.version), URL: optional(d, d.url), Models: optional(d, d.models),
		Weight:   optional(d, d.float),
		KVTokens: optional(d, d.int), Source: optional(d, d.source),
	}
}

func (d *decoder) setBackendState() SetBackendState {
	c := SetBackendState{
		Action: Action(d.enum(byte(MarkUp))), By: d.author(), Reason: d.string(MaxReasonBytes), Names: d.strings(MaxBackends, MaxNameBytes),
	}
	if n := d.count(MaxBackends, 1); n > 0 {
		c.IfVersions = make([]uint64, n)
		for i := range c.IfVersions {
			c.IfVersions[i] = d.version()
		}
		if n != len(c.Names) {
			d.fail(fmt.Errorf("%d versions of %d backends", n, len(c.Names)))
		}
	}
	return c
}

func (d *decoder) setHot() SetHot {
	changes := make([]HotChange, d.count(2*MaxHot, 9))
	for i := range changes {
		h := HotChange{Anchor: d.uint64(), Remove: d.bool()}
		if !h.Remove {
			h.Depth = uint32(d.uint(math.MaxUint32))
			h.R = uint16(d.uint(math.MaxUint16))
			h.Expires = d.int()
		}
		changes[i] = h
	}
	return SetHot{changes}
}

func (d *decoder) constants() Constants {
	return Constants{
		KeyID: uint32(d.uint(math.MaxUint32)), BlockBytes: uint32(d.uint(math.MaxUint32)), Cluster: d.name(),
	}
}

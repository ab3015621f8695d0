package events

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Bounds of one batch. An engine publishes at most one batch per step; a step of 128k tokens stores and removes 8k blocks of 16.
const (
	maxEvents = 1 << 16
	maxHashes = 1 << 19
	maxGroups = 256
	maxHash   = 64 // bytes of one hash
	maxCount  = 1 << 30
)

// keepEvents and keepHashes bound what a decoder keeps of a large batch.
const (
	keepEvents = 1 << 12
	keepHashes = 1 << 15
)

// Decoder decodes batches of one stream: vLLM's and SGLang's, with events as maps (vLLM 0.24, SGLang 0.5.20 and later) or as
// arrays. The zero value is ready. Not safe for concurrent use.
type Decoder struct {
	events  []Event
	hashes  []uint64
	partial [maxGroups]bool // groups that do not keep the whole prefix: sliding windows, Mamba

	// hashAt is where the 8 bytes of the latest hash begin, if its encoding is one byte for the type and these 8; else 0.
	hashAt int
	// latest is the last event's bytes, if it removes one block with such a hash; hashAt then counts from their start.
	latest []byte
}

// Decode returns the events of a payload in order, without those that say nothing about the engine's own whole prefixes, which it
// counts as ignored: groups other than main attention, remote blocks, media other than GPU, CPU and disk, event types it does not
// know. The events are valid until the next call and as long as the payload is unchanged. An error wraps ErrMalformed.
func (d *Decoder) Decode(payload []byte) (events []Event, ignored int, err error) {
	if cap(d.events) > keepEvents {
		d.events = nil
	}
	if cap(d.hashes) > keepHashes {
		d.hashes = nil
	}
	d.events, d.hashes, d.latest = d.events[:0], d.hashes[:0], nil
	r := reader{data: payload}
	switch v := r.next(); v.kind {
	case isArray: // time, events, rank
		if v.n < 2 {
			r.fail("an array of time and events")
			break
		}
		r.skip(1)
		ignored = d.batch(&r)
		r.skip(v.n - 2)
	case isMap:
		for range v.n {
			if string(r.bytes()) == "events" {
				ignored += d.batch(&r)
			} else {
				r.skip(1)
			}
		}
	default:
		r.fail("an array or a map")
	}
	if r.err != nil {
		return nil, 0, r.err
	}
	return d.events, ignored, nil
}

func (d *Decoder) batch(r *reader) (ignored int) {
	for range r.array() {
		if len(d.events) >= maxEvents {
			r.fail(fmt.Sprintf("at most %d events", maxEvents))
		}
		if d.again(r) {
			continue
		}
		from := r.at
		d.latest = nil
		d.events = append(d.events, Event{})
		switch e := &d.events[len(d.events)-1]; {
		case !d.event(r, e):
			d.events = d.events[:len(d.events)-1]
			ignored++
		case e.Kind == Removed && len(e.Hashes) == 1 && d.hashAt > 0:
			d.latest, d.hashAt = r.data[from:r.at], d.hashAt-from
		}
		if r.err != nil {
			break
		}
	}
	return ignored
}

// again reads a removal whose bytes differ from those of the event before in the hash alone, as almost all of vLLM's do, in a tenth of the
// time. The bytes before the hash are equal, so the hash has the same type and place, and the event ends where the one before did.
func (d *Decoder) again(r *reader) bool {
	if len(d.latest) == 0 || len(r.data)-r.at < len(d.latest) {
		return false
	}
	from, to := d.hashAt, d.hashAt+8
	next := r.data[r.at : r.at+len(d.latest)]
	if !bytes.Equal(next[:from], d.latest[:from]) || !bytes.Equal(next[to:], d.latest[to:]) || len(d.hashes) >= maxHashes {
		return false
	}
	e := d.events[len(d.events)-1]
	d.hashes = append(d.hashes, binary.BigEndian.Uint64(next[from:]))
	e.Hashes = d.hashes[len(d.hashes)-1 : len(d.hashes) : len(d.hashes)]
	d.events = append(d.events, e)
	r.at += len(next)
	return true
}

// fields are an event and the members that decide about it.
type fields struct {
	*Event
	tag       []byte
	medium    []byte
	spec      []byte // kind of the group
	locality  []byte
	ownership []byte
}

// event reads one event into e, which is zero; false if it is to be ignored.
func (d *Decoder) event(r *reader, e *Event) bool {
	f := fields{Event: e}
	switch v := r.next(); v.kind {
	case isMap:
		for range v.n {
			d.member(r, &f, r.bytes())
			if r.err != nil {
				break
			}
		}
	case isArray:
		for i := range v.n {
			if i == 0 {
				f.tag = r.bytes()
			} else {
				d.member(r, &f, []byte(position(f.tag, i)))
			}
			if r.err != nil {
				break
			}
		}
	default:
		r.fail("an event")
	}
	return r.err == nil && d.judge(&f)
}

// position names the element i of an event that is an array. SGLang has metadata where vLLM has the LoRA name; neither is read.
func position(tag []byte, i uint64) string {
	stored := [...]string{
		1: "block_hashes", "parent_block_hash", "token_ids", "block_size", "", "medium", "", "", "group_idx", "kv_cache_spec_kind",
	}
	removed := [...]string{1: "block_hashes", "medium", "group_idx"}
	switch {
	case string(tag) == "BlockStored" && i < uint64(len(stored)):
		return stored[i]
	case string(tag) == "BlockRemoved" && i < uint64(len(removed)):
		return removed[i]
	}
	return ""
}

func (d *Decoder) member(r *reader, f *fields, name []byte) {
	switch string(name) {
	case "type":
		f.tag = r.bytes()
	case "block_hashes":
		f.Hashes = d.hashList(r)
	case "parent_block_hash":
		f.Parent, f.HasParent = r.hash()
	case "token_ids":
		n := r.array() // counted and passed over: they are the prompt in clear
		f.Tokens = int(n)
		r.skip(n)
	case "block_size":
		f.BlockSize = int(r.count(maxCount))
	case "medium":
		f.medium = r.bytes()
	case "group_idx":
		f.Group = int32(r.count(maxGroups - 1))
	case "kv_cache_spec_kind":
		f.spec = r.bytes()
	case "locality":
		f.locality = r.bytes()
	case "ownership":
		f.ownership = r.bytes()
	case "session_id":
		f.Session = r.bytes()
	default:
		r.skip(1)
	}
}

func (d *Decoder) hashList(r *reader) []uint64 {
	n := r.array()
	if n > maxHashes || len(d.hashes)+int(n) > maxHashes {
		r.fail(fmt.Sprintf("at most %d hashes in a batch", maxHashes))
		return nil
	}
	from := len(d.hashes)
	for range n {
		begun := r.at
		h, ok := r.hash()
		if !ok {
			r.fail("a hash")
			return nil
		}
		if d.hashAt = 0; eightBytes(r.data[begun]) {
			d.hashAt = begun + 1
		}
		d.hashes = append(d.hashes, h) // a slice of an earlier event keeps the old memory when this one grows
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)]
}

// eightBytes reports whether a value's first byte says that 8 bytes follow, and nothing else: of a number, signed or not, or a string.
func eightBytes(first byte) bool { return first == 0xcf || first == 0xd3 || first == 0xa8 }

// hash reads a block hash: a signed or unsigned integer, or a digest, of which the low 64 bits count. False for nil.
func (r *reader) hash() (h uint64, ok bool) {
	v := r.next()
	switch v.kind {
	case isInt:
		return v.n, true
	case isBytes:
		if v.n == 0 || v.n > maxHash {
			r.fail(fmt.Sprintf("a hash of 1 to %d bytes", maxHash))
			return 0, false
		}
		r.at += int(v.n)
		return bigEndian(r.data[r.at-int(v.n) : r.at]), true
	case isOther:
		return 0, false
	}
	r.fail("a hash or nil")
	return 0, false
}

// judge completes an event by its members; false if it is to be ignored.
func (d *Decoder) judge(f *fields) bool {
	switch string(f.tag) {
	case "AllBlocksCleared":
		*f.Event = Event{Kind: Cleared}
		return true
	case "BlockStored":
		f.Kind = Stored
		// Removals name only the group, so its kind is kept from what it stored.
		switch string(f.spec) {
		case "":
		case "full_attention", "mla_attention", "sink_full_attention":
			d.partial[f.Group] = false
		default:
			d.partial[f.Group] = true
		}
	case "BlockRemoved":
		f.Kind = Removed
	default:
		return false
	}
	var known bool
	f.Tier, known = tierOf(f.medium)
	elsewhere := string(f.locality) == "REMOTE" || string(f.ownership) == "kvcr" // a store that several engines share
	return known && !elsewhere && !d.partial[f.Group]
}

// tierOf classifies a medium by its prefix, because engines add to the name (CPU_PINNED) and spell it in both cases. Engines
// that name no medium mean the GPU.
func tierOf(medium []byte) (Tier, bool) {
	var low [4]byte
	n := copy(low[:], medium)
	for i := range low[:n] {
		low[i] |= 0x20
	}
	switch {
	case n == 0, string(low[:3]) == "gpu":
		return GPU, true
	case string(low[:3]) == "cpu":
		return CPU, true
	case string(low[:]) == "disk", string(low[:]) == "stor":
		return Disk, true
	}
	return 0, false
}

package engine

import (
	"encoding/binary"
	"slices"
	"time"
)

// lateSteps is how many steps of pure decoding SGLang makes before it publishes what they changed.
const lateSteps = 40

// journal writes what a model's cache stores and removes as vLLM or SGLang report it, and gives a batch of it to publish when the
// engine would send one. A nil journal writes nothing. It belongs to the model's goroutine.
type journal struct {
	style   MetricsStyle
	block   int // tokens
	publish func([]Change)

	changes []Change // since the last batch
	steps   int      // of pure decoding since the last batch
	// copies are blocks that vLLM computed although it had them, the oldest first. The model frees such a block at once; the journal
	// takes it for removed when the model needs its memory.
	copies []uint64
}

// Change is one change of a cache, in the form of an event that engines publish.
type Change struct {
	Kind string   // BlockStored, BlockRemoved or AllBlocksCleared
	Keys []uint64 // of the blocks
	// Of BlockStored only:
	First   bool // Keys begin a prompt
	Parent  uint64
	Answer  bool   // Keys end within the answer, which the job generates
	Session string // of the job

	// In a live engine:
	tokens []byte // TokenBytes for each
	call   *call
}

// Values of Change.Kind.
const (
	BlockStored      = "BlockStored"
	BlockRemoved     = "BlockRemoved"
	AllBlocksCleared = "AllBlocksCleared"
)

// Publish makes the model give each batch of changes to f when an engine of that style would publish it. All jobs have keys of so many
// tokens. From then on the model simulates every step singly. f must not keep the changes, nor call the model.
func (m *Model) Publish(style MetricsStyle, keyTokens int, f func([]Change)) {
	m.cache.journal = &journal{style: style, block: keyTokens, publish: f}
}

// eager reports whether blocks of output are to be published in the step that fills them, as vLLM does.
func (l *journal) eager() bool { return l != nil && l.style == StyleVLLM }

// admitted writes what an admission stores: vLLM computes the end of a prompt that it has whole once more, in a block of its own.
func (l *journal) admitted(j *Job) {
	if !l.eager() {
		return
	}
	hit := j.seq.done / j.KeyTokens
	if s, live := j.User.(*seat); live && s.call.fields.XArgs.Report == "full" {
		l.store(j, 0, hit)
	}
	l.copied(j, hit, j.seq.held)
	l.store(j, hit, j.seq.held)
}

// stored writes that j filled its blocks from the given one up to those it holds. The cache had the first copied of them.
func (l *journal) stored(j *Job, from, copied int) {
	switch {
	case l == nil:
		return
	case l.style == StyleVLLM:
		l.copied(j, from, from+copied)
	default: // SGLang frees its own block and keeps the one that it had
		from += copied
	}
	l.store(j, from, j.seq.held)
}

func (l *journal) copied(j *Job, from, to int) {
	for i := from; i < to; i++ {
		l.copies = append(l.copies, j.key(i))
	}
}

func (l *journal) store(j *Job, from, to int) {
	if from >= to {
		return
	}
	c := Change{Kind: BlockStored, First: from == 0, Answer: j.seq.state == stateDecode, Session: j.Session}
	if from > 0 {
		c.Parent = j.key(from - 1)
	}
	for i := from; i < to; i++ {
		c.Keys = append(c.Keys, j.key(i))
	}
	if s, live := j.User.(*seat); live {
		c.call, c.tokens = s.call, s.text(from*l.block*TokenBytes, to*l.block*TokenBytes)
	}
	if last := len(l.changes) - 1; last >= 0 && l.style == StyleSGLang && l.changes[last].precedes(&c) {
		l.changes[last].Keys = append(l.changes[last].Keys, c.Keys...)
		l.changes[last].tokens = append(l.changes[last].tokens, c.tokens...)
		return
	}
	l.changes = append(l.changes, c)
}

// precedes reports whether SGLang writes both changes as one.
func (c *Change) precedes(next *Change) bool {
	return c.Kind == BlockStored && c.call == next.call && c.Session == next.Session && !next.First && c.Keys[len(c.Keys)-1] == next.Parent
}

// key is the key of block i, of the prompt or the output.
func (j *Job) key(i int) uint64 {
	if prompt := min(len(j.Keys), j.PromptTokens/j.KeyTokens); i >= prompt {
		return j.OutKeys[i-prompt]
	}
	return j.Keys[i]
}

// text returns bytes of the prompt and the reply behind it.
func (s *seat) text(from, to int) []byte {
	text := make([]byte, 0, to-from)
	if from < len(s.prompt) {
		text = append(text, s.prompt[from:min(to, len(s.prompt))]...)
	}
	if to > len(s.prompt) {
		text = append(text, s.reply[max(from-len(s.prompt), 0):to-len(s.prompt)]...)
	}
	return text
}

// removed writes that the end of a chain is gone: vLLM names its blocks one by one, the last first; SGLang all together, and with
// them those of the removals before.
func (l *journal) removed(keys []uint64) {
	switch {
	case l == nil:
	case l.style == StyleVLLM:
		for i := len(keys) - 1; i >= 0; i-- {
			l.changes = append(l.changes, Change{Kind: BlockRemoved, Keys: []uint64{keys[i]}})
		}
	default:
		if last := len(l.changes) - 1; last >= 0 && l.changes[last].Kind == BlockRemoved {
			l.changes[last].Keys = append(l.changes[last].Keys, keys...)
			return
		}
		l.changes = append(l.changes, Change{Kind: BlockRemoved, Keys: append([]uint64(nil), keys...)})
	}
}

// makeRoom removes copies until the others fit into free tokens.
func (l *journal) makeRoom(free int) {
	if l == nil {
		return
	}
	for len(l.copies) > 0 && len(l.copies)*l.block > free {
		l.removed(l.copies[:1])
		l.copies = l.copies[1:]
	}
}

func (l *journal) cleared() {
	if l == nil {
		return
	}
	l.copies = nil
	if last := len(l.changes) - 1; last < 0 || l.changes[last].Kind != AllBlocksCleared {
		l.changes = append(l.changes, Change{Kind: AllBlocksCleared})
	}
}

// forget begins a new journal: the engine restarts.
func (l *journal) forget() { l.changes, l.copies, l.steps = nil, nil, 0 }

// step publishes what was written since the last batch when the engine would: vLLM in each step that computes something, SGLang
// after a prefill, after lateSteps without one, and when it becomes idle.
func (l *journal) step(prefills, decodes bool) {
	switch {
	case l == nil:
		return
	case l.style == StyleVLLM:
		if !prefills && !decodes {
			return
		}
	case decodes && !prefills:
		if l.steps++; l.steps < lateSteps {
			return
		}
	}
	l.steps = 0
	if len(l.changes) == 0 {
		return
	}
	l.publish(l.changes)
	clear(l.changes)
	l.changes = l.changes[:0]
}

// encoder writes changes as a live engine publishes them.
type encoder struct {
	style    MetricsStyle
	block    int // tokens
	adapters []string
}

// batch is the msgpack array of time, events and rank. An event is a map; a member at its default is left out.
func (l *encoder) batch(changes []Change, now time.Time) []byte {
	b := packArray(nil, 3)
	b = packFloat(b, float64(now.UnixMicro())/1e6)
	b = packArray(b, len(changes))
	for i := range changes {
		b = l.event(b, &changes[i])
	}
	return packUint(b, 0)
}

func (l *encoder) event(b []byte, c *Change) []byte {
	vllm := l.style == StyleVLLM
	members, count := make([]byte, 0, 64+len(c.tokens)*5/4+10*len(c.Keys)), 0
	name := func(s string) {
		count++
		members = packString(members, s)
	}
	text := func(member, value string) {
		name(member)
		members = packString(members, value)
	}
	text("type", c.Kind)
	if c.Kind != AllBlocksCleared {
		name("block_hashes")
		members = packArray(members, len(c.Keys))
		for _, h := range c.Keys {
			members = l.hash(members, h)
		}
	}
	switch c.Kind {
	case BlockStored:
		name("parent_block_hash")
		if c.First {
			members = packNil(members)
		} else {
			members = l.hash(members, c.Parent)
		}
		name("token_ids")
		ids := tokenIDs(c.tokens)
		members = packArray(members, len(ids))
		for _, id := range ids {
			members = packUint(members, uint64(id))
		}
		name("block_size")
		members = packUint(members, uint64(l.block))
		adapter, salt, session := c.call.adapter, c.call.fields.CacheSalt, c.Session
		name("lora_id")
		if at := slices.Index(l.adapters, adapter); vllm && at >= 0 {
			members = packUint(members, uint64(at)+1)
		} else {
			members = packNil(members)
		}
		text("medium", "GPU")
		if vllm {
			name("lora_name")
			members = packNilOr(members, adapter)
			name("extra_keys")
			members = packArray(members, len(c.Keys))
			for i := range c.Keys {
				members = packExtra(members, adapter, salt, c.First && i == 0)
			}
			name("group_idx")
			members = packUint(members, 0)
			text("kv_cache_spec_kind", "full_attention")
		} else if salt != "" {
			text("cache_salt", salt)
		}
		if session != "" {
			text("session_id", session)
		}
		if !vllm && adapter != "" {
			text("lora_name", adapter)
		}
	case BlockRemoved:
		text("medium", "GPU")
		if vllm {
			name("group_idx")
			members = packUint(members, 0)
		}
	}
	return append(packMap(b, count), members...)
}

// hash is a key as the engine has it: SGLang's are signed.
func (l *encoder) hash(b []byte, key uint64) []byte {
	if l.style == StyleSGLang && int64(key) < 0 {
		return binary.BigEndian.AppendUint64(append(b, 0xd3), key)
	}
	return packUint(b, key)
}

// packExtra is what vLLM hashes of a block beside its tokens: the adapter, and of a prompt's first block the salt.
func packExtra(b []byte, adapter, salt string, first bool) []byte {
	var keys []string
	if adapter != "" {
		keys = append(keys, adapter)
	}
	if first && salt != "" {
		keys = append(keys, salt)
	}
	if keys == nil {
		return packNil(b)
	}
	b = packArray(b, len(keys))
	for _, k := range keys {
		b = packString(b, k)
	}
	return b
}

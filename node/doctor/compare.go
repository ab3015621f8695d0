package doctor

import (
	"slices"

	"grapevine.example/proxy/prompt"
)

// Kind is how two prompts that hold the same content diverge.
type Kind string

const (
	// Insertion: a stretch differs, and behind it both are the same again.
	Insertion Kind = "insertion"
	// Order: both hold the same pieces, in another order.
	Order Kind = "order"
)

const (
	// Less content behind the divergence is chance, or a phrase that all prompts have: a block, and this share of the prompt.
	leastAgain      = prompt.MaxChunk
	leastAgainShare = 0.1
	// Chunks of fewer bytes, such as the role of a message, say nothing about what prompts share.
	leastChunk = 16
	// Out of order is more of the field's common content than this share.
	outOfOrder = 0.1
)

// divergence is the first place where a prompt differs from another one that shares content behind it.
type divergence struct {
	kind   Kind // "": they share nothing behind it that could be moved before it
	field  prompt.Field
	offset int // bytes of the field before it
	at     int // bytes of the prompt before it
	differ int // bytes until they are the same again; in an order, of the pieces that moved
	again  int // bytes behind it that both have
}

// outline is a sketch whose hashes are numbered from 0, so that arrays replace maps.
type outline struct {
	*prompt.Sketch
	ids []int32 // of the chunks
}

// study compares the sketches of one application.
type study struct {
	outlines []outline
	first    []int32 // scratch, by id: a place, plus 1; 0: none
	next     []int32 // scratch, by place: the next one of the same id
}

func newStudy(samples []sample) *study {
	s := &study{outlines: make([]outline, len(samples))}
	ids := make(map[uint32]int32)
	for i := range samples {
		o := outline{Sketch: samples[i].sketch, ids: make([]int32, len(samples[i].sketch.Chunks))}
		for k, c := range o.Chunks {
			id, ok := ids[c.Hash]
			if !ok {
				id = int32(len(ids))
				ids[c.Hash] = id
			}
			o.ids[k] = id
		}
		s.outlines[i] = o
		s.next = make([]int32, max(len(s.next), len(o.Chunks)))
	}
	s.first = make([]int32, len(ids))
	return s
}

// nearest returns the sketch that has most content of sketch i behind the place where it diverges from it, or -1, and the bytes that each
// comparable sketch begins with as i does.
func (s *study) nearest(i int) (partner int, begins []int) {
	partner = -1
	own := &s.outlines[i]
	for _, id := range own.ids {
		s.first[id] = 1
	}
	most := 0
	for j := range s.outlines {
		o := &s.outlines[j]
		if j == i || o.Root != own.Root {
			continue
		}
		begin, same := 0, 0
		for same < len(o.Chunks) && same < len(own.Chunks) && own.Chunks[same] == o.Chunks[same] {
			begin += int(o.Chunks[same].Bytes)
			same++
		}
		begins = append(begins, begin)
		behind := 0
		for k := same; k < len(o.Chunks); k++ {
			if s.first[o.ids[k]] > 0 {
				behind += int(o.Chunks[k].Bytes)
			}
		}
		if behind > most {
			partner, most = j, behind
		}
	}
	for _, id := range own.ids {
		s.first[id] = 0
	}
	return partner, begins
}

// compare describes how sketch x diverges from sketch y, with a precision of one chunk.
func (s *study) compare(x, y int) (d divergence) {
	a, b := &s.outlines[x], &s.outlines[y]
	i := 0
	for ; i < len(a.Chunks) && i < len(b.Chunks) && a.Chunks[i] == b.Chunks[i]; i++ {
		d.at += int(a.Chunks[i].Bytes)
		switch c := a.Chunks[i]; {
		case i+1 < len(a.Chunks) && a.Chunks[i+1].Field != c.Field:
			d.offset = 0
		case d.offset > 0 || c.Bytes >= leastChunk: // not the role before the text
			d.offset += int(c.Bytes)
		}
	}
	if i == len(a.Chunks) || i == len(b.Chunks) {
		return d // one continues the other
	}
	if d.field = a.Chunks[i].Field; b.Chunks[i].Field < d.field {
		d.field, d.offset = b.Chunks[i].Field, 0
	}
	if d.field == prompt.FieldLater {
		return d // conversations differ
	}
	na, nb := movable(a.Chunks[i:], d.field), movable(b.Chunks[i:], d.field)
	ra, rb := a.Chunks[i:i+na], b.Chunks[i:i+nb]
	pairs := s.common(ra, rb, a.ids[i:i+na], b.ids[i:i+nb])
	if len(pairs) == 0 {
		return d
	}
	bytes := weigh(pairs)
	if bytes < leastAgain || float64(bytes) < leastAgainShare*float64(min(a.Bytes, b.Bytes)) {
		return d
	}
	d.kind, d.again = Insertion, bytes
	d.differ = max(sum(ra[:pairs[0].a]), sum(rb[:pairs[0].b]))
	inField := slices.DeleteFunc(pairs, func(p pair) bool { return ra[p.a].Field != d.field })
	if all := weigh(inField); all > 0 {
		if moved := all - longest(inField); float64(moved) > outOfOrder*float64(all) {
			d.kind, d.differ = Order, moved
		}
	}
	return d
}

// movable returns how many chunks could stand before the divergence, if that were mended: all behind it, but of a user's message or a plain
// prompt only itself, since what users ask differs for good.
func movable(chunks []prompt.Chunk, f prompt.Field) (n int) {
	if f < prompt.FieldUser || f == prompt.FieldTail {
		return len(chunks)
	}
	for n < len(chunks) && chunks[n].Field == f {
		n++
	}
	return n
}

func sum(chunks []prompt.Chunk) (bytes int) {
	for _, c := range chunks {
		bytes += int(c.Bytes)
	}
	return bytes
}

// pair is a chunk that both prompts have.
type pair struct{ a, b, bytes int }

func weigh(pairs []pair) (bytes int) {
	for _, p := range pairs {
		bytes += p.bytes
	}
	return bytes
}

// common pairs equal chunks, each once, in a's order.
func (s *study) common(a, b []prompt.Chunk, ofA, ofB []int32) (pairs []pair) {
	for i := len(b) - 1; i >= 0; i-- {
		s.next[i], s.first[ofB[i]] = s.first[ofB[i]], int32(i+1)
	}
	for i, c := range a {
		if at := s.first[ofA[i]] - 1; c.Bytes >= leastChunk && at >= 0 && b[at].Field == c.Field {
			pairs = append(pairs, pair{i, int(at), int(c.Bytes)})
			s.first[ofA[i]] = s.next[at]
		}
	}
	for _, id := range ofB {
		s.first[id] = 0
	}
	return pairs
}

// longest returns the bytes of the longest sequence of pairs that is in order in both prompts.
func longest(pairs []pair) (bytes int) {
	var best [prompt.SketchChunks + 1]int // a Fenwick tree of maxima by place in b
	for _, p := range pairs {
		before := 0
		for k := p.b; k > 0; k &= k - 1 {
			before = max(before, best[k])
		}
		ends := before + p.bytes
		for k := p.b + 1; k < len(best); k += k & -k {
			best[k] = max(best[k], ends)
		}
		bytes = max(bytes, ends)
	}
	return bytes
}

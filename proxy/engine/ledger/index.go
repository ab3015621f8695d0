package ledger

import (
	"iter"
	"math/bits"
)

// index finds entries of a table by hash: open addressing in which entries with nearer homes make room for those with farther ones
// (Robin Hood hashing), so that all entries of one home stand together and in the order of their homes. A word has an entry's number in its
// lower bits, then some bits of its hash, and its distance from its home, from 1 on; 0 is free. So a search reads the entry that it is for and
// one in 16 of those with the same home, and a removal none.
type index struct {
	words   []uint32
	seed    uint64 // hashes come from outside
	fetched uint32 // unused; keeps the compiler from removing fetch's reads
}

const (
	idBits   = 21
	idMask   = 1<<idBits - 1
	tagBits  = 4
	oneStep  = 1 << (idBits + tagBits) // of distance
	farthest = ^uint32(0) - (oneStep - 1)
)

// enlarge makes room for so many entries and puts those that it is given, by their hashes.
func (x *index) enlarge(entries int, all iter.Seq2[uint64, uint32]) {
	x.words = make([]uint32, entries+entries/4+1)
	for hash, id := range all {
		s := x.search(hash)
		for _, ok := x.next(&s); ok; _, ok = x.next(&s) {
		}
		x.put(s, id)
	}
}

// fits reports whether there is room for so many entries without longer searches.
func (x *index) fits(entries int) bool { return entries <= len(x.words)*4/5 }

// entry is of a table that an index has.
type entry interface{ key() uint64 }

// keys yields the keys of a table's entries, but 0, with their numbers.
func keys[E entry](table []E) iter.Seq2[uint64, uint32] {
	return func(yield func(uint64, uint32) bool) {
		for i := range table {
			if k := table[i].key(); k != 0 && !yield(k, uint32(i)) {
				return
			}
		}
	}
}

// seek returns the number of the entry of a hash, and where a new one belongs if there is none.
func seek[E entry](x *index, table []E, hash uint64) (id uint32, s search, found bool) {
	s = x.search(hash)
	for id, found = x.next(&s); found; id, found = x.next(&s) {
		if table[id].key() == hash {
			return id, s, true
		}
	}
	return 0, s, false
}

// search goes over the words that may be of one hash.
type search struct {
	at   int
	word uint32 // that would stand there, without an entry's number
}

func (x *index) search(hash uint64) search {
	hi, lo := bits.Mul64(hash^x.seed, 0x9e3779b97f4a7c15)
	home, _ := bits.Mul64(hi^lo, uint64(len(x.words)))
	return search{int(home), oneStep | uint32(hi^lo)&(oneStep-1)&^idMask}
}

// next returns the next entry that may be the one; without one, s is where a new entry belongs.
func (x *index) next(s *search) (id uint32, ok bool) {
	for {
		w, here := x.words[s.at], s.word
		if w < here&farthest || here >= farthest {
			return 0, false
		}
		s.word += oneStep
		if s.at++; s.at == len(x.words) {
			s.at = 0
		}
		if w&^idMask == here {
			return w & idMask, true
		}
	}
}

// put adds an entry where the search for its hash ended. It returns false if too many have homes near by.
func (x *index) put(s search, id uint32) bool {
	end := s.at
	for ; x.words[end] != 0; end = x.behind(end) {
		if x.words[end] >= farthest-oneStep {
			return false
		}
	}
	if s.word >= farthest {
		return false
	}
	w := s.word | id
	for at := s.at; at != end; at = x.behind(at) {
		w, x.words[at] = x.words[at]+oneStep, w
	}
	x.words[end] = w
	return true
}

func (x *index) remove(hash uint64, id uint32) {
	s := x.search(hash)
	for {
		if found, ok := x.next(&s); !ok {
			return
		} else if found == id {
			break
		}
	}
	at := (s.at + len(x.words) - 1) % len(x.words)
	for {
		next := x.behind(at)
		if x.words[next] < 2*oneStep {
			x.words[at] = 0
			return
		}
		x.words[at] = x.words[next] - oneStep
		at = next
	}
}

func (x *index) behind(at int) int {
	if at++; at == len(x.words) {
		return 0
	}
	return at
}

// fetch loads what searches will read into the CPU's cache, all at once: each search would wait for its own.
func (x *index) fetch(hashes ...uint64) {
	for _, h := range hashes {
		x.fetched ^= x.words[x.search(h).at]
	}
}

package prefixtree

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	// Facts per stratum, 24 bytes each: small at first so that the newest leave at once.
	firstStratum = 1 << 14
	maxStratum   = 1 << 18

	// 32 classes of age per octave, within which facts are sorted by backend to save backend
	// records.
	ageOctave  = 5
	maxAge     = Time(retention*maxHorizonMs) + 1
	ageClasses = (28 - ageOctave + 1) << ageOctave
)

func ageClass(age Time) int {
	a := uint64(max(0, min(age, maxAge)))
	shift := max(0, bits.Len64(a)-ageOctave-1)
	return shift<<ageOctave + int(a>>shift)
}

func classAge(class int) Time {
	if class < 1<<ageOctave {
		return Time(class)
	}
	return Time(class&(1<<ageOctave-1)|1<<ageOctave) << (class>>ageOctave - 1)
}

// found orders an anchor: class in bits 46-55, backend in 30-45, age in 2-29, span minus one in
// 0-1.
type found struct {
	order uint64
	anchor
}

const foundClassShift = 46

func ordered(a anchor, now Time) found {
	age := max(0, min(now-entryTime(a.entry), maxAge))
	order := uint64(ageClass(age))<<foundClassShift | uint64(entryBackend(a.entry))<<30 | uint64(age)<<2
	return found{order | uint64(entrySpan(a.entry)-1), a}
}

// Snapshot yields fences and live anchor facts, newest first, in pages of at most limit bytes
// (MinPayload to MaxPayload) that are valid until yield returns; false ends it. A fact not touched
// meanwhile is yielded once; changes reach the peer as deltas. It takes about 6 MiB and holds no
// lock while yield runs. Safe for concurrent use.
func (t *Tree) Snapshot(now Time, names Names, limit int, yield func(page []byte, records int) bool) {
	p := pages{t: t, now: clampTime(now), most: maxStratum, yield: yield}
	p.w = encoder{limit: max(MinPayload, min(limit, MaxPayload)), names: names}
	p.all()
}

type pages struct {
	t       *Tree
	now     Time
	most    int // facts collected at once
	w       encoder
	records int
	yield   func(page []byte, records int) bool

	kept    []anchor // of one shard
	stratum []found
}

func (p *pages) all() {
	if !p.fences() {
		return
	}
	counts, total := p.count()
	p.stratum = make([]found, 0, min(total, p.most))
	size := min(firstStratum, p.most)
	for from := 0; from < ageClasses; {
		to, sum := from, 0
		for to < ageClasses && (sum == 0 || sum+counts[to] <= size) {
			sum += counts[to]
			to++
		}
		if sum > 0 && !p.collect(from, to) {
			return
		}
		from, size = to, min(2*size, p.most)
	}
	p.flush()
}

func (p *pages) count() (counts [ageClasses]int, total int) {
	for i := range p.t.shards {
		p.kept = p.t.anchors(&p.t.shards[i], p.now, p.kept[:0], 0, maxTime)
		for _, a := range p.kept {
			counts[ageClass(p.now-entryTime(a.entry))]++
		}
		total += len(p.kept)
	}
	return counts, total
}

func (p *pages) collect(from, to int) bool {
	after, upTo := Time(0), maxTime // the first class includes the future, the last the whole past
	if from > 0 {
		upTo = p.now - classAge(from)
	}
	if to < ageClasses {
		after = p.now - classAge(to)
	}
	for i := range p.t.shards {
		p.kept = p.t.anchors(&p.t.shards[i], p.now, p.kept[:0], after, upTo)
		for _, a := range p.kept {
			// One class may exceed the stratum.
			if len(p.stratum) == p.most && !p.emit() {
				return false
			}
			p.stratum = append(p.stratum, ordered(a, p.now))
		}
	}
	return p.emit()
}

func (p *pages) emit() bool {
	slices.SortFunc(p.stratum, func(a, b found) int { return cmp.Compare(a.order, b.order) })
	for rest := p.stratum; len(rest) > 0; {
		room := p.w.room()
		if room < 1 {
			if !p.flush() {
				return false
			}
			continue
		}
		first := rest[0].entry
		n := 1
		for n < len(rest) && n < room && rest[n].entry == first {
			n++
		}
		f := p.t.fact(rest[0].anchor)
		if p.w.head(&f, n) {
			for _, x := range rest[:n] {
				p.w.hash(Hash(x.key))
			}
			p.records += n
		}
		rest = rest[n:]
	}
	p.stratum = p.stratum[:0]
	return true
}

// fences come first, or facts behind them would stay at the joiner.
func (p *pages) fences() bool {
	for b := range p.t.limits {
		f := p.t.fence(Backend(b))
		if f.Time == 0 {
			continue
		}
		if p.w.room() < 1 && !p.flush() {
			return false
		}
		if p.w.head(&f, 0) {
			p.records++
		}
	}
	return true
}

func (p *pages) flush() bool {
	page, records := p.w.dst, p.records
	p.w, p.records = encoder{dst: page[:0], limit: p.w.limit, names: p.w.names}, 0
	return records == 0 || p.yield(page, records)
}

package prefixtree

// FactDigest returns the number and XOR of the mixed values of live anchor facts last touched in
// [from, to); equal trees have equal digests. With names, backends count by key, without by id. It
// reads the whole tree, about 30 ns a fact. Safe for concurrent use.
func (t *Tree) FactDigest(now, from, to Time, names Names) (count, xor uint64) {
	t.Range(now, func(f Fact) bool {
		if f.Time < from || f.Time >= to {
			return true
		}
		key, ok := uint32(f.Backend), true
		if names != nil {
			key, ok = names.Key(f.Backend)
		}
		if ok {
			count++
			xor ^= f.digest(key)
		}
		return true
	})
	return count, xor
}

// FactSum is the digest of some facts.
type FactSum struct{ Count, XOR uint64 }

// FactDigests returns the digest of each named backend with facts, by key, over all times.
func (t *Tree) FactDigests(now Time, names Names) map[uint32]FactSum {
	out := make(map[uint32]FactSum)
	t.Range(now, func(f Fact) bool {
		if key, ok := names.Key(f.Backend); ok {
			s := out[key]
			out[key] = FactSum{s.Count + 1, s.XOR ^ f.digest(key)}
		}
		return true
	})
	return out
}

func (f *Fact) digest(key uint32) uint64 {
	return mix(mix(mix(uint64(f.Hash))+uint64(key)) + uint64(f.Time))
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

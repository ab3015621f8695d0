package prefixtree

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func hashesOf(h *Hasher, prompt []byte, roots ...[]byte) []Hash {
	var c Chain
	c.Reset(h)
	for _, r := range roots {
		c.Root(r)
	}
	c.Write(prompt)
	return slices.Clone(c.Hashes())
}

func TestChainIsIndependentOfChunks(t *testing.T) {
	h, err := NewHasher([]byte("s"), 64)
	if err != nil {
		t.Fatal(err)
	}
	var c Chain
	rapid.Check(t, func(t *rapid.T) {
		prompt := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(t, "prompt")
		want := hashesOf(h, prompt)
		c.Reset(h)
		for rest := prompt; len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 200)).Draw(t, "chunk")
			switch {
			case n%2 == 0:
				c.WriteString(string(rest[:n]))
			default:
				chunk := bytes.Clone(rest[:n])
				c.Write(chunk)
				clear(chunk) // the chain must not have kept it
			}
			rest = rest[n:]
		}
		if !slices.Equal(c.Hashes(), want) || c.Len() != len(prompt) || len(want) != len(prompt)/64 {
			t.Fatalf("%d bytes: %x, want %x", len(prompt), c.Hashes(), want)
		}
	})
}

func TestChainPreservesPrefixes(t *testing.T) {
	h := newHasher(t)
	prompt := bytes.Repeat([]byte("grapevine "), 2000)
	all := hashesOf(h, prompt, []byte("model"))
	for _, n := range []int{0, 511, 512, 513, 10_000} {
		if got := hashesOf(h, prompt[:n], []byte("model")); !slices.Equal(got, all[:n/512]) {
			t.Errorf("%d bytes: not a prefix", n)
		}
	}
	changed := bytes.Clone(prompt)
	changed[5000] ^= 1
	got := hashesOf(h, changed, []byte("model"))
	for i := range all {
		if (got[i] == all[i]) != (i < 5000/512) {
			t.Errorf("block %d: a change at byte 5000 must change it and all below, nothing above", i)
		}
	}
}

func TestChainSeparates(t *testing.T) {
	h := newHasher(t)
	prompt := bytes.Repeat([]byte{7}, 4096)
	other, err := NewHasher([]byte("another secret"), 512)
	if err != nil {
		t.Fatal(err)
	}
	wider, err := NewHasher([]byte("test secret"), 1024)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Hash]string{}
	for name, hashes := range map[string][]Hash{
		"no root":         hashesOf(h, prompt),
		"empty root":      hashesOf(h, prompt, nil),
		"two empty roots": hashesOf(h, prompt, nil, nil),
		"ab c":            hashesOf(h, prompt, []byte("ab"), []byte("c")),
		"a bc":            hashesOf(h, prompt, []byte("a"), []byte("bc")),
		"abc":             hashesOf(h, prompt, []byte("abc")),
		"other secret":    hashesOf(other, prompt),
		"other size":      hashesOf(wider, prompt),
	} {
		for _, hash := range hashes {
			if hash == 0 {
				t.Error("a chain yielded zero")
			}
			if with, ok := seen[hash]; ok {
				t.Errorf("%q shares a hash with %q", name, with)
			}
			seen[hash] = name
		}
	}
	if h.KeyID() == other.KeyID() || h.KeyID() == wider.KeyID() || h.KeyID() != newHasher(t).KeyID() {
		t.Error("a KeyID must name secret and block size")
	}
}

func TestTwoSeedsDiffer(t *testing.T) {
	if slices.Equal(chainOf(t, 1, 5), chainOf(t, 2, 5)) || !slices.Equal(chainOf(t, 1, 5), chainOf(t, 1, 6)[:5]) {
		t.Error("a chain must be determined by its seed")
	}
}

func TestFromKeysIsAChain(t *testing.T) {
	h := newHasher(t)
	a := FromKeys(nil, h, []byte("m"), []uint64{1, 2, 3})
	b := FromKeys(a[:0:0], h, []byte("m"), []uint64{1, 2, 4})
	if a[0] != b[0] || a[1] != b[1] || a[2] == b[2] {
		t.Errorf("%x %x", a, b)
	}
	if c := FromKeys(nil, h, []byte("n"), []uint64{1}); c[0] == a[0] {
		t.Error("roots do not separate")
	}
}

func TestRootAfterWritePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var c Chain
	c.Reset(newHasher(t))
	c.Write([]byte("x"))
	c.Root([]byte("y"))
}

func TestNewHasherRefuses(t *testing.T) {
	if _, err := NewHasher(nil, 512); !errors.Is(err, ErrNoSecret) {
		t.Error(err)
	}
	for _, n := range []int{0, -1, 15, 1<<20 + 1} {
		if _, err := NewHasher([]byte("s"), n); !errors.Is(err, ErrBlockBytes) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestAnchorsAreNumberedInOrder(t *testing.T) {
	for total := 1; total < 200; total++ {
		var want []int
		for depth := 0; depth <= total+1; depth++ {
			if isAnchor(depth, total) {
				want = append(want, depth)
			}
		}
		if anchorCount(total) != len(want) {
			t.Fatalf("total %d: %d anchors, want %d", total, anchorCount(total), len(want))
		}
		for i, depth := range want {
			if anchorDepth(i, total) != depth || anchorIndex(depth, total) != i {
				t.Fatalf("total %d: anchor %d at %d (index %d), want %d", total, i, anchorDepth(i, total), anchorIndex(depth, total), depth)
			}
		}
	}
}

package events

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	h1, h2 := spread(1), spread(2)
	digest := append(bytes.Repeat([]byte{0xab}, 24), 1, 2, 3, 4, 5, 6, 7, 8)
	for _, c := range []struct {
		name    string
		event   any
		want    Event
		ignored bool
	}{
		{"vllm map", pairs{"type", "BlockStored", "block_hashes", []any{h1, h2}, "parent_block_hash", nil, "token_ids", ints(0, 32),
			"block_size", 16, "lora_id", nil, "medium", "GPU", "lora_name", nil, "extra_keys", []any{[]any{"pepper"}, nil}, "group_idx", 0,
			"kv_cache_spec_kind", "full_attention", "session_id", "stamp-A"},
			Event{Kind: Stored, Hashes: []uint64{h1, h2}, BlockSize: 16, Tokens: 32, Session: []byte("stamp-A")}, false},
		{"vllm map, type last, lookahead", pairs{"lookahead_token_ids", []any{ints(5, 3)}, "block_hashes", []any{h2},
			"parent_block_hash", h1, "token_ids", ints(0, 16), "block_size", 16, "lora_id", 7, "medium", nil, "lora_name", "x",
			"new", pairs{"a", []any{1.5, true}}, "type", "BlockStored"},
			Event{Kind: Stored, Hashes: []uint64{h2}, Parent: h1, HasParent: true, BlockSize: 16, Tokens: 16}, false},
		{"vllm array", []any{"BlockStored", []any{h1}, h2, ints(0, 16), 16, nil, "GPU", "lora", nil, 3, "mla_attention", nil},
			Event{Kind: Stored, Hashes: []uint64{h1}, Parent: h2, HasParent: true, BlockSize: 16, Tokens: 16, Group: 3}, false},
		{"vllm array, first form", []any{"BlockStored", []any{h1}, nil, ints(0, 16), 16, nil},
			Event{Kind: Stored, Hashes: []uint64{h1}, BlockSize: 16, Tokens: 16}, false},
		{"vllm digest", pairs{"type", "BlockStored", "block_hashes", []any{digest}, "parent_block_hash", []byte{9}, "token_ids", ints(0, 4),
			"block_size", 4, "medium", "cpu"},
			Event{Kind: Stored, Hashes: []uint64{0x0102030405060708}, Parent: 9, HasParent: true, BlockSize: 4, Tokens: 4, Tier: CPU}, false},
		{"placeholder", pairs{"type", "BlockStored", "block_hashes", []any{h1}, "parent_block_hash", nil, "token_ids", []any{},
			"block_size", 0, "lora_id", nil, "medium", "STORAGE"},
			Event{Kind: Stored, Hashes: []uint64{h1}, Tier: Disk}, false},
		{"sglang map", pairs{"type", "BlockStored", "block_hashes", []any{int64(-2), int64(5)}, "parent_block_hash", int64(-1),
			"token_ids", []any{[]any{1, 2}, []any{2, 3}}, "block_size", 1, "lora_id", nil, "medium", "CPU_PINNED", "cache_salt", nil, "session_id", "s"},
			Event{Kind: Stored, Hashes: []uint64{1<<64 - 2, 5}, Parent: 1<<64 - 1, HasParent: true, BlockSize: 1, Tokens: 2, Tier: CPU,
				Session: []byte("s")}, false},
		{"sglang array with metadata", []any{"BlockStored", []any{int64(-300)}, nil, ints(0, 1), 1, nil, "GPU", pairs{"cache_salt", "x"}},
			Event{Kind: Stored, Hashes: []uint64{1<<64 - 300}, BlockSize: 1, Tokens: 1}, false},
		{"removed map", pairs{"type", "BlockRemoved", "block_hashes", []any{h1}, "medium", "DISK", "group_idx", 2},
			Event{Kind: Removed, Hashes: []uint64{h1}, Tier: Disk, Group: 2}, false},
		{"removed array", []any{"BlockRemoved", []any{h1}, "GPU", 4}, Event{Kind: Removed, Hashes: []uint64{h1}, Group: 4}, false},
		{"removed array, first form", []any{"BlockRemoved", []any{h1}}, Event{Kind: Removed, Hashes: []uint64{h1}}, false},
		{"cleared map", pairs{"type", "AllBlocksCleared"}, Event{Kind: Cleared}, false},
		{"cleared array", []any{"AllBlocksCleared"}, Event{Kind: Cleared}, false},
		{"external", pairs{"type", "BlockRemoved", "block_hashes", []any{h1}, "medium", "EXTERNAL"}, Event{}, true},
		{"remote", pairs{"type", "BlockRemoved", "block_hashes", []any{h1}, "medium", "CPU", "locality", "REMOTE"}, Event{}, true},
		{"local", pairs{"type", "BlockRemoved", "block_hashes", []any{h1}, "medium", "CPU", "locality", "LOCAL"},
			Event{Kind: Removed, Hashes: []uint64{h1}, Tier: CPU}, false},
		{"shared store", pairs{"type", "BlockRemoved", "block_hashes", []any{h1}, "medium", "GPU", "ownership", "kvcr"}, Event{}, true},
		{"sliding window", pairs{"type", "BlockStored", "block_hashes", []any{h1}, "group_idx", 1, "kv_cache_spec_kind", "sliding_window"},
			Event{}, true},
		{"unknown type", pairs{"type", "BlockMoved", "to", []any{1, 2}}, Event{}, true},
		{"unknown array", []any{"BlockMoved", 1, []any{2}}, Event{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d Decoder
			// Between two others, so that a wrong length would show.
			events, ignored, err := d.Decode(payload(pairs{"type", "AllBlocksCleared"}, c.event, removedMap(9)))
			if err != nil {
				t.Fatal(err)
			}
			want := []Event{{Kind: Cleared}, c.want, {Kind: Removed, Hashes: []uint64{spread(9)}}}
			if c.ignored {
				want = append(want[:1], want[2])
			}
			if !reflect.DeepEqual(events, want) || (ignored == 1) != c.ignored {
				t.Errorf("got  %+v, %d ignored\nwant %+v", events, ignored, want)
			}
		})
	}
}

func TestDecodeBatchForms(t *testing.T) {
	cleared := []any{pairs{"type", "AllBlocksCleared"}}
	for name, b := range map[string][]byte{
		"array of two":  pack(nil, []any{1.5, cleared}),
		"whole seconds": pack(nil, []any{7, cleared, nil, "more"}),
		"map":           pack(nil, pairs{"ts", 1.5, "events", cleared, "data_parallel_rank", 3}),
	} {
		var d Decoder
		if events, _, err := d.Decode(b); err != nil || len(events) != 1 || events[0].Kind != Cleared {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
}

// The removals of a group do not say its kind.
func TestGroupsOfOtherAttention(t *testing.T) {
	var d Decoder
	stored := func(group int, kind string) pairs {
		return pairs{"type", "BlockStored", "block_hashes", hashes(uint64(group), 1), "parent_block_hash", nil, "token_ids", ints(0, 16),
			"block_size", 16, "medium", "GPU", "group_idx", group, "kv_cache_spec_kind", kind}
	}
	removed := func(group int) pairs {
		return pairs{"type", "BlockRemoved", "block_hashes", hashes(uint64(group), 1), "medium", "GPU", "group_idx", group}
	}
	events, ignored, err := d.Decode(payload(
		stored(0, "full_attention"), stored(1, "sliding_window"), stored(2, "mamba"), removed(0), removed(1), removed(2), removed(3)))
	if err != nil || ignored != 4 || len(events) != 3 || events[1].Group != 0 || events[2].Group != 3 {
		t.Fatalf("%+v, %d ignored, %v", events, ignored, err)
	}
	if events, ignored, err = d.Decode(payload(removed(1))); err != nil || ignored != 1 || len(events) != 0 {
		t.Fatalf("next batch: %+v, %d ignored, %v", events, ignored, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	ok := payload(storedMap(1, 3, "stamp"), removedMap(1))
	bad := map[string][]byte{
		"empty":             {},
		"not a batch":       pack(nil, "x"),
		"no events":         pack(nil, []any{1.5}),
		"events are a map":  pack(nil, []any{1.5, pairs{"a", 1}}),
		"an event is a nil": pack(nil, []any{1.5, []any{nil}}),
		"long array":        {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"long map":          {0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"long string":       {0x92, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"reserved byte":     {0x92, 0xc1, 0x90},
		"nil hash":          payload(pairs{"type", "BlockRemoved", "block_hashes", []any{nil}}),
		"long hash":         payload(pairs{"type", "BlockRemoved", "block_hashes", []any{make([]byte, 65)}}),
		"empty hash":        payload(pairs{"type", "BlockRemoved", "block_hashes", []any{""}}),
		"float hash":        payload(pairs{"type", "BlockRemoved", "block_hashes", []any{1.5}}),
		"negative size":     payload(pairs{"type", "BlockStored", "block_size", -1}),
		"large group":       payload(pairs{"type", "BlockStored", "group_idx", 256}),
		"medium is a list":  payload(pairs{"type", "BlockStored", "medium", []any{}}),
		"many events":       append(append([]byte{0x92, 0x01, 0xdd}, 0, 1, 0, 1), bytes.Repeat(pack(nil, []any{"AllBlocksCleared"}), 1<<16+1)...),
		"deep":              append([]byte{0x92, 0x01, 0x91}, bytes.Repeat([]byte{0x91}, 1<<20)...),
	}
	for i := range ok {
		bad[fmt.Sprintf("cut at %d", i)] = ok[:i]
	}
	for name, b := range bad {
		var d Decoder
		if events, _, err := d.Decode(b); !errors.Is(err, ErrMalformed) || events != nil {
			t.Errorf("%s: %v, %v", name, events, err)
		}
	}
	many := make([]any, 9)
	for i := range many {
		many[i] = pairs{"type", "BlockRemoved", "block_hashes", ints(0, 1<<16-1)}
	}
	var d Decoder
	if _, _, err := d.Decode(payload(many...)); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "hashes") {
		t.Errorf("many hashes: %v", err)
	}
	if events, _, err := d.Decode(ok); err != nil || len(events) != 2 || cap(d.hashes) > keepHashes {
		t.Errorf("after them: %v, %v, room for %d hashes", events, err, cap(d.hashes))
	}
}

// Every event of a batch keeps its hashes while the memory behind them grows.
func TestHashesOfManyEvents(t *testing.T) {
	var list []any
	for i := range 300 {
		list = append(list, storedMap(uint64(100*i), i%7+1, nil))
	}
	var d Decoder
	for range 2 {
		events, _, err := d.Decode(payload(list...))
		if err != nil || len(events) != len(list) {
			t.Fatal(len(events), err)
		}
		for i, e := range events {
			if len(e.Hashes) != i%7+1 || e.Hashes[0] != spread(uint64(100*i)) || e.Hashes[len(e.Hashes)-1] != spread(uint64(100*i+i%7)) {
				t.Fatalf("event %d: %v", i, e.Hashes)
			}
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	b := payload(storedMap(1, 64, "gv1.abcdefghijklmnopqrstuvwxyz0123456789"), removedMap(1), storedMap(64, 1, nil))
	var d Decoder
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := d.Decode(b); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(payload(storedMap(1, 3, "stamp"), removedMap(1), pairs{"type", "AllBlocksCleared"}))
	f.Add(payload([]any{"BlockStored", []any{int64(-2)}, nil, ints(0, 1), 1, nil, "GPU", pairs{"cache_salt", "x"}}))
	f.Add(pack(nil, pairs{"ts", 1.5, "events", []any{pairs{"type", "BlockRemoved", "block_hashes", []any{[]byte{1, 2}}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		events, ignored, err := d.Decode(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || events != nil {
				t.Fatalf("%v, %v", events, err)
			}
			return
		}
		total := 0
		for _, e := range events {
			total += len(e.Hashes)
			if e.Kind > Cleared || e.Tier > Disk || e.Group < 0 || e.BlockSize < 0 || e.Tokens < 0 || len(e.Session) > len(b) {
				t.Fatalf("%+v", e)
			}
		}
		if total+len(events)+ignored > len(b) {
			t.Fatalf("%d hashes and %d events, %d ignored, from %d bytes", total, len(events), ignored, len(b))
		}
		first := fmt.Sprint(events)
		if again, _, err := d.Decode(b); err != nil || fmt.Sprint(again) != first {
			t.Fatalf("second time: %v, %v", again, err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	var removed []any
	for i := range 64 {
		removed = append(removed, removedMap(uint64(i)))
	}
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"stored=64x16", payload(storedMap(1, 64, "gv1.abcdefghijklmnopqrstuvwxyz0123456789"))},
		{"removed=64", payload(removed...)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.payload)))
			var d Decoder
			for b.Loop() {
				if _, _, err := d.Decode(c.payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A removal like the one before is read by its bytes. What comes is what its members say, as if each event came alone.
func TestRemovalsAlike(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	kinds := []func() any{
		func() any { return removedMap(rng.Uint64()) },
		func() any { return removedMap(rng.Uint64()) },
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", []any{rng.Uint64() >> rng.IntN(64)}, "medium", "GPU"}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", []any{-int64(rng.Uint64() >> 1)}, "medium", "CPU"}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", hashes(rng.Uint64(), 2), "medium", "GPU"}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", []any{pack(nil, rng.Uint64()|1<<63)}, "medium", "GPU", "group_idx", 1}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", []any{"\xcf" + string(rune('a'+rng.IntN(3))) + "bcdefg"}, "medium", nil}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "medium", "NVME", "block_hashes", hashes(rng.Uint64(), 1)}
		},
		func() any { // as long as a number of 8 bytes
			return pairs{"type", "BlockRemoved", "block_hashes", []any{pack(nil, rng.Uint64()|1<<63)[2:]}, "medium", "GPU"}
		},
		func() any {
			return pairs{"type", "BlockRemoved", "block_hashes", []any{pack(nil, rng.Uint64()|1<<63)[3:]}, "medium", "GPU"}
		},
		func() any { return storedMap(rng.Uint64(), 1, "stamp") },
	}
	like := 0
	for range 300 {
		var all []any
		var want []string
		var each Decoder
		for range 1 + rng.IntN(30) {
			e := kinds[rng.IntN(len(kinds))]
			for range 1 + rng.IntN(3) {
				all = append(all, e())
				alone, _, err := each.Decode(payload(all[len(all)-1]))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range alone {
					want = append(want, fmt.Sprintf("%+v", e))
				}
			}
		}
		var d Decoder
		got, _, err := d.Decode(payload(all...))
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d events, %v; want %d", len(got), err, len(want))
		}
		for i, e := range got {
			if s := fmt.Sprintf("%+v", e); s != want[i] {
				t.Fatalf("event %d of %d: %s, want %s", i, len(got), s, want[i])
			}
		}
		if len(d.latest) > 0 {
			like++
		}
	}
	if like == 0 {
		t.Error("no batch ended with a removal that others are compared with")
	}
}

// A payload that ends too soon is malformed wherever it ends, also in a number that is passed over.
func TestCutPayload(t *testing.T) {
	whole := payload(removedMap(1<<40), pairs{"type", "BlockRemoved", "block_hashes", []any{uint64(1) << 63}, "x", uint64(1) << 31, "y", uint64(1) << 15})
	for n := range whole {
		var d Decoder
		if got, _, err := d.Decode(slices.Clip(slices.Clone(whole[:n]))); err == nil {
			t.Errorf("%d of %d bytes: %d events and no error", n, len(whole), len(got))
		}
	}
}

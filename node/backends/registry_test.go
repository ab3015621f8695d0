package backends

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grapevine.example/prefixtree"
)

var key = prefixtree.BackendKey

type bench struct {
	*Registry
	at       time.Time
	busy     map[Number]bool
	released []Number
}

func newBench(capacity int) *bench {
	w := &bench{at: time.Unix(1e9, 0), busy: make(map[Number]bool)}
	w.Registry = NewRegistry(capacity, func(b Number) bool {
		if !w.busy[b] {
			w.released = append(w.released, b)
		}
		return !w.busy[b]
	}, func() time.Time { return w.at })
	return w
}

func (w *bench) list(t *testing.T, names ...string) []Number {
	t.Helper()
	numbers, errs := w.List(names)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.at = w.at.Add(time.Millisecond)
	return numbers
}

// TestANumberKeepsItsMeaning: an engine keeps its own number until that is released.
func TestANumberKeepsItsMeaning(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const engines, capacity = 60, 40
	w := newBench(capacity)
	meaning := make(map[Number]string)
	var names []string
	for i := range engines {
		names = append(names, fmt.Sprint("engine-", i))
	}
	learned := func(b Number, name string) {
		t.Helper()
		for _, r := range w.released {
			delete(meaning, r)
		}
		w.released = nil
		if was, known := meaning[b]; known && was != name {
			t.Fatalf("number %d stood for %s, and stands for %s without having been released", b, was, name)
		}
		for other, is := range meaning {
			if is == name && other != b {
				t.Fatalf("%s has the numbers %d and %d", name, other, b)
			}
		}
		meaning[b] = name
	}
	for range 2000 {
		w.at = w.at.Add(time.Duration(rnd.IntN(40)) * time.Second)
		if rnd.IntN(3) > 0 {
			name := names[rnd.IntN(engines)]
			if b, ok := w.Backend(key(name)); ok {
				learned(b, name)
			}
			continue
		}
		clear(w.busy)
		for range rnd.IntN(10) {
			w.busy[Number(rnd.IntN(capacity))] = true
		}
		rnd.Shuffle(engines, func(i, j int) { names[i], names[j] = names[j], names[i] })
		list := names[:rnd.IntN(capacity/2-5)] // leaves room for the former list and the busy engines
		taken := make(map[Number]bool)
		for i, b := range w.list(t, list...) {
			learned(b, list[i])
			k, ok := w.Key(b)
			if is, known := w.Lookup(key(list[i])); taken[b] || !ok || k != key(list[i]) || !known || is != b || int(b) >= capacity {
				t.Fatalf("%s has the number %d, taken %v, with the key %08x", list[i], b, taken[b], k)
			}
			taken[b] = true
		}
		all := 0
		w.Listed(func(b Number, _ uint32) {
			if all++; !taken[b] {
				t.Fatalf("%d is listed", b)
			}
		})
		if all != len(list) {
			t.Fatalf("%d of %d are listed", all, len(list))
		}
	}
}

// TestStrangersAreBounded: strangers hold a bounded share, for a time, and never a listed number.
func TestStrangersAreBounded(t *testing.T) {
	const most = 1000
	w := newBench(2 * most)
	mine := w.list(t, "a", "b")
	w.list(t, "a")
	given := make(map[Number]bool)
	for i := range 3 * most {
		if b, ok := w.Backend(uint32(i)); ok {
			given[b] = true
		}
	}
	if len(given) != most || len(w.released) > 0 {
		t.Fatalf("%d have a number, %d were released", len(given), len(w.released))
	}
	if b, ok := w.Backend(key("b")); !ok || b != mine[1] {
		t.Errorf("an engine that left has %d, had %d", b, mine[1])
	}
	w.at = w.at.Add(StrangerFor + time.Second)
	b, ok := w.Backend(1 << 31)
	if !ok || !given[b] || !slices.Equal(w.released, []Number{b}) {
		t.Errorf("a later one has %d, %v; released %v", b, ok, w.released)
	}
	if _, ok := w.Key(b); ok {
		t.Error("a stranger is spoken of")
	}
	stranger, _ := w.Backend(key("c"))
	if got := w.list(t, "a", "c"); got[1] != stranger {
		t.Errorf("listed as %d, was %d", got[1], stranger)
	}
}

// TestNumbersRunOut: numbers return in the order of leaving, except from busy engines.
func TestNumbersRunOut(t *testing.T) {
	w := newBench(4)
	first := w.list(t, "a", "b", "c", "d")
	w.list(t, "a", "c", "d")
	w.list(t, "d")
	w.busy[first[1]] = true
	numbers, errs := w.List([]string{"d", "e", "f", "g"})
	if numbers[1] != first[0] || numbers[2] != first[2] || errs[3] == nil || !strings.Contains(errs[3].Error(), "requests run") {
		t.Fatalf("%v %v", numbers, errs)
	}
	if _, ok := w.Backend(key("h")); ok {
		t.Error("a stranger has a number")
	}
	clear(w.busy)
	if got := w.list(t, "d", "e", "f", "g"); got[3] != first[1] {
		t.Errorf("%v", got)
	}
}

// TestNamesWithOneKey: of two names with one key, the second waits until the first is released.
func TestNamesWithOneKey(t *testing.T) {
	seen := make(map[uint32]string)
	var pair []string
	for i := 0; pair == nil; i++ { // about 80,000 names contain a pair
		name := fmt.Sprint("engine-", i)
		if other, ok := seen[key(name)]; ok {
			pair = []string{other, name}
		}
		seen[key(name)] = name
	}
	w := newBench(10)
	numbers, errs := w.List(pair)
	if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), pair[0]) {
		t.Fatalf("%v", errs)
	}
	w.busy[numbers[0]] = true
	if _, errs = w.List(pair[1:]); errs[0] == nil {
		t.Error("requests run at the first")
	}
	clear(w.busy)
	if got := w.list(t, pair[1]); got[0] != numbers[0] || len(w.released) != 1 {
		t.Errorf("%v, released %v", got, w.released)
	}
}

func TestConcurrentMentions(t *testing.T) {
	w := newBench(200)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 400 {
				name := fmt.Sprint("engine-", i%100)
				b, ok := w.Backend(key(name))
				if again, known := w.Lookup(key(name)); !ok || !known || again != b {
					t.Errorf("%s has the numbers %d and %d", name, b, again)
				}
				w.Key(b)
			}
		})
	}
	for i := range 100 {
		w.List([]string{fmt.Sprint("engine-", i), fmt.Sprint("engine-", i+1)})
	}
	wg.Wait()
}

func BenchmarkList(b *testing.B) {
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprint("engine-", i))
	}
	r := NewRegistry(8192, func(Number) bool { return true }, time.Now)
	b.ReportAllocs()
	for b.Loop() {
		r.List(names)
	}
}

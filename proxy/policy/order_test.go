package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grapevine/chaos/virtual"
	"grapevine/prefixtree"
)

func orderOf(t *testing.T, list []Backend) (*order, func(entry int) string) {
	t.Helper()
	r, _ := newRouter(t, Config{}, list)
	p := r.table.Load().all
	if p.order == nil {
		t.Fatalf("a pool of %d has no order", len(p.entries))
	}
	return p.order, func(entry int) string { return p.name(p.entries[entry].id) }
}

func firstNames(t *testing.T, o *order, name func(int) string, key uint64, n int) (list []string) {
	t.Helper()
	for w := o.begin(key, n); len(list) < n; {
		at, ok := w.next()
		if !ok {
			t.Fatalf("the walk of %x ends after %d of %d", key, len(list), n)
		}
		if !slices.Contains(list, name(at)) {
			list = append(list, name(at))
		}
	}
	return list
}

func TestOrderGivesShares(t *testing.T) {
	const n, keys = 300, 120_000
	for _, heavy := range []float64{1, 3} {
		list := fleetOf(n)
		for i := range n / 3 {
			list[i].Weight = heavy
		}
		o, name := orderOf(t, list)
		got := map[string]int{}
		for k := range keys {
			got[firstNames(t, o, name, mix(uint64(k)+1), 1)[0]]++
		}
		fair := keys / (n/3*heavy + n*2/3)
		heavies := 0
		for i, b := range list {
			want := fair
			if i < n/3 {
				want *= heavy
				heavies += got[b.Name]
			}
			// Six standard deviations of at least 240 keys.
			if have := float64(got[b.Name]); have < 0.6*want || have > 1.4*want {
				t.Errorf("weight %v: %.0f keys, want about %.0f", b.Weight, have, want)
			}
		}
		if want := fair * heavy * n / 3; float64(heavies) < 0.96*want || float64(heavies) > 1.04*want {
			t.Errorf("those of weight %v have %d keys, want about %.0f", heavy, heavies, want)
		}
	}
}

func TestOrderDisruptsLeast(t *testing.T) {
	const n, keys, depth = 400, 2000, 12
	rng := rand.New(rand.NewPCG(virtual.Seed(t), 0))
	list := fleetOf(n)
	o, name := orderOf(t, list)
	first := make([][]string, keys)
	for k := range first {
		first[k] = firstNames(t, o, name, mix(uint64(k)+1), depth)
	}
	shuffled := slices.Clone(list)
	rng.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i := range shuffled {
		shuffled[i].ID = prefixtree.Backend(i)
	}
	one := rng.IntN(n)
	drained := slices.Clone(list)
	drained[one].State = Draining
	gone := slices.Delete(slices.Clone(list), one, one+1)
	for _, c := range []struct {
		what  string
		list  []Backend
		moved int // at most so many keys with another first backend
	}{{"shuffled", shuffled, 0}, {"drained", drained, 0}, {"gone", gone, 10 * keys / n}} {
		o, name := orderOf(t, c.list)
		moved := 0
		for k, before := range first {
			after := firstNames(t, o, name, mix(uint64(k)+1), depth-1)
			want := before
			if c.what != "shuffled" {
				want = slices.DeleteFunc(slices.Clone(before), func(s string) bool { return s == list[one].Name })
			}
			if c.moved == 0 && !slices.Equal(after, want[:depth-1]) {
				t.Fatalf("%s: key %d has %v, before %v", c.what, k, after, before)
			}
			if after[0] != want[0] {
				moved++
			}
		}
		if moved > c.moved {
			t.Errorf("%s: %d keys of others moved", c.what, moved)
		}
	}
}

func TestOrderFindsTheFewThatAreLeft(t *testing.T) {
	list := fleetOf(4000)
	for i := range list {
		if i > weighAll {
			list[i].State = Down
		} else if i > 0 {
			list[i].Weight = 1e-3
		}
	}
	r, _ := newRouter(t, Config{}, list)
	for i := range 300 {
		d := serve(t, r, ask(prompt(uint64(i), 0, 4, 4)), t0+prefixtree.Time(i))
		if int(d.Backend) > weighAll {
			t.Fatalf("%s is down", d.Name)
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, n := range []int{300, 2000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			r, _ := newRouter(b, Config{}, fleetOf(n))
			o := r.table.Load().all.order
			for i := 0; b.Loop(); i++ {
				w := o.begin(uint64(i), 64)
				for range 64 {
					w.next()
				}
			}
		})
	}
}

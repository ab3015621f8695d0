package virtual

import (
	"slices"
	"testing"
)

func TestSeedsAreTheOnesAskedFor(t *testing.T) {
	for _, c := range []struct {
		only, seeds, from string
		weight            int
		want              []uint64
	}{
		{"", "", "", 1, []uint64{1, 2, 3}},
		{"", "", "8", 1, []uint64{8, 9, 10}},
		{"77", "5", "3", 1, []uint64{77}},
		{"", "5", "", 1, []uint64{1, 2, 3, 4, 5}},
		{"", "5", "100", 2, []uint64{100, 101}},
		{"", "5", "", 9, []uint64{1}},
	} {
		t.Setenv(seedVariable, c.only)
		t.Setenv(seedsVariable, c.seeds)
		t.Setenv(fromVariable, c.from)
		var got []uint64
		t.Run("run", func(t *testing.T) {
			Seeds(t, 3, c.weight, func(_ *testing.T, seed uint64) { got = append(got, seed) })
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: seeds %v", c, got)
		}
	}
}

func TestSeedIsTheOneAskedFor(t *testing.T) {
	t.Setenv(seedVariable, "77")
	if got := Seed(t); got != 77 {
		t.Errorf("seed %d, want 77", got)
	}
	t.Setenv(seedVariable, "")
	if a, b := Seed(t), Seed(t); a == b {
		t.Errorf("twice the seed %d", a)
	}
}

func TestRepeatNamesTheTestAndTheSeed(t *testing.T) {
	t.Setenv(seedVariable, "41")
	t.Run("inner", func(t *testing.T) {
		Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
			want := "GRAPEVINE_TEST_SEED=41 go test -count=1 -v -run '^TestRepeatNamesTheTestAndTheSeed$/^inner$' ."
			if got := Repeat(t, seed); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	})
}

func TestRandIsRepeatable(t *testing.T) {
	a, b, c, d := Rand(1, 2), Rand(1, 2), Rand(1, 3), Rand(2, 2)
	for range 10 {
		if x := a.Uint64(); x != b.Uint64() || x == c.Uint64() || x == d.Uint64() {
			t.Fatal("seeds and streams do not decide the numbers")
		}
	}
}

func TestSwarmDiffersFromSeedToSeed(t *testing.T) {
	off, on := 0, 0
	for seed := range uint64(200) {
		r := Rand(seed+1, 0)
		s := NewSwarm(r, 5, 2)
		var seen [5]int
		for range 500 {
			seen[s.Next(r)]++
		}
		if seen[2] == 0 {
			t.Fatalf("seed %d: what always happens did not: %v", seed, seen)
		}
		for _, n := range seen {
			if n == 0 {
				off++
			} else {
				on++
			}
		}
	}
	if off < 100 || on < 300 {
		t.Errorf("kinds were off %d times and on %d times", off, on)
	}
	if s := NewSwarm(Rand(1, 0), 0+1); s.Next(Rand(1, 0)) != 0 {
		t.Error("the only kind is not drawn")
	}
}

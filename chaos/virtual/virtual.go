// Package virtual runs a test for each of many seeds: the same few in `make test`, so that a
// failure comes from a change, thousands in `make chaos-virtual SEEDS=5000`. DESIGN.md lists the
// tests.
package virtual

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

const (
	seedVariable  = "GRAPEVINE_TEST_SEED"
	seedsVariable = "GRAPEVINE_TEST_SEEDS" // number of seeds instead of each test's own few
	fromVariable  = "GRAPEVINE_TEST_FROM"
)

// Seeds runs a subtest for each seed from 1 to quick, or for the environment's number divided by
// weight, the test's relative cost.
func Seeds(t *testing.T, quick, weight int, run func(t *testing.T, seed uint64)) {
	t.Helper()
	only, from, count := number(t, seedVariable), number(t, fromVariable), number(t, seedsVariable)
	switch {
	case only > 0:
		from, count = only, 1
	case count > 0:
		count = max(count/uint64(weight), 1)
	default:
		count = uint64(quick)
	}
	from = max(from, 1)
	for seed := from; seed < from+count; seed++ {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			logRepeat(t, seed)
			run(t, seed)
		})
		if !ok {
			return
		}
	}
}

// Seed returns the seed in the environment, or a random one, and logs it if the test fails.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := cmp.Or(number(t, seedVariable), rand.Uint64())
	logRepeat(t, seed)
	return seed
}

func logRepeat(t testing.TB, seed uint64) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("repeat with: " + Repeat(t, seed))
		}
	})
}

// Repeat is the command that runs one seed again in the test's directory.
func Repeat(t testing.TB, seed uint64) string {
	top, _, _ := strings.Cut(t.Name(), "/seed=")
	parts := strings.Split(top, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	return fmt.Sprintf("%s=%d go test -count=1 -v -run '%s' .", seedVariable, seed, strings.Join(parts, "/"))
}

// Rand returns the same numbers for the same seed and stream.
func Rand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

func number(t testing.TB, variable string) uint64 {
	text := os.Getenv(variable)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: give a number above 0", variable, text)
	}
	return n
}

// Swarm draws weights for kinds of events, some 0, so that runs differ in kind.
type Swarm struct {
	weights []int
	sum     int
}

// NewSwarm draws the weights of n kinds; those of always are above 0.
func NewSwarm(r *rand.Rand, n int, always ...int) *Swarm {
	s := &Swarm{weights: make([]int, n)}
	for i := range s.weights {
		if r.IntN(3) > 0 {
			s.weights[i] = 1 << r.IntN(5)
		}
	}
	for _, i := range always {
		s.weights[i] = max(s.weights[i], 4)
	}
	for _, w := range s.weights {
		s.sum += w
	}
	if s.sum == 0 {
		s.weights[r.IntN(n)], s.sum = 1, 1
	}
	return s
}

func (s *Swarm) Next(r *rand.Rand) int {
	at := r.IntN(s.sum)
	for i, w := range s.weights {
		if at -= w; at < 0 {
			return i
		}
	}
	panic("virtual: weights do not sum up")
}

// Package virtual runs a test once for each of many seeds. A few of them run in every `make test`, always the same ones, so
// that a change either breaks them or does not; `make chaos-virtual SEEDS=5000` goes through thousands.
//
// It does not simulate anything itself: the tests are in the packages whose code they run, where they see its insides.
// DESIGN.md lists them.
package virtual

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The environment of a run.
const (
	seedVariable  = "GRAPEVINE_TEST_SEED"  // only this seed
	seedsVariable = "GRAPEVINE_TEST_SEEDS" // how many seeds, in place of each test's own few
	fromVariable  = "GRAPEVINE_TEST_FROM"  // the first of them; 1 if unset
)

// Seeds runs a test as a subtest for each seed, one after the other: for the seeds 1 to quick, or as the environment says.
// Of a number given there each test takes the share that its seeds are worth: weight is what one costs, in units of the
// cheapest tests'. A seed that fails says how it is repeated.
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
			t.Cleanup(func() {
				if t.Failed() {
					t.Log("repeat with: " + Repeat(t, seed))
				}
			})
			run(t, seed)
		})
		if !ok {
			return // one failure is enough to look at, and others would hide it
		}
	}
}

// Repeat is the command, to be given in the test's directory, that runs one seed of a test again.
func Repeat(t testing.TB, seed uint64) string {
	top, _, _ := strings.Cut(t.Name(), "/seed=")
	parts := strings.Split(top, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}
	return fmt.Sprintf("%s=%d go test -count=1 -v -run '%s' .", seedVariable, seed, strings.Join(parts, "/"))
}

// Rand returns a source that gives the same numbers for the same seed; equal seeds with other streams are unrelated.
func Rand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

func number(t *testing.T, variable string) uint64 {
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

// Swarm draws how often each of several kinds of things happens in a run: some not at all, the others at rates that differ by
// factors, so that runs differ in kind and not only in detail. Weights sum up to more than 0.
type Swarm struct {
	weights []int
	sum     int
}

// NewSwarm draws the weights of n kinds. Those named in always have one above 0.
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

// Next draws a kind.
func (s *Swarm) Next(r *rand.Rand) int {
	at := r.IntN(s.sum)
	for i, w := range s.weights {
		if at -= w; at < 0 {
			return i
		}
	}
	panic("virtual: weights do not sum up")
}

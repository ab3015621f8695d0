package fleet_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grapevine/gossip/wire"
	"grapevine/prefixtree"
)

// seedEnv repeats a run: its value is the seed that the run has printed.
const seedEnv = "GRAPEVINE_LIVE_SEED"

// seed is the one that seedEnv gives, else one from the clock. It is printed.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with %s=%d", seedEnv, s)
	return s
}

// faulty loses a fifth of all batches, doubles a fifth, and delays each by up to a third of a second, so that later ones pass it. Safe for
// concurrent use.
type faulty struct {
	mu                  sync.Mutex
	rng                 *rand.Rand
	lost, doubled, seen atomic.Int64
}

func (f *faulty) decide(string, *wire.Batch) (drop bool, copies int, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen.Add(1)
	copies = 1
	switch f.rng.IntN(5) {
	case 0:
		f.lost.Add(1)
		return true, 0, 0
	case 1:
		f.doubled.Add(1)
		copies = 2
	}
	return false, copies, time.Duration(f.rng.Int64N(int64(time.Second / 3)))
}

// TestLiveLoss: five members on real sockets place and retract, while of all batches a fifth is lost, a fifth comes twice and all come out of
// order. Soon after the last placement all trees hold the same, to the last fact.
func TestLiveLoss(t *testing.T) {
	full := live(t)
	s := seed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const members = 5
	faults := &faulty{rng: rand.New(rand.NewPCG(s, 1))}
	var guests []*guest
	var join []string
	for i := range members {
		g := newGuest(t, guestConfig{
			name: fmt.Sprintf("member-%d", i), addr: "127.0.0.1:0", join: join, key: make([]byte, 32), secret: "a secret of sixteen bytes or more",
			engines: []string{"a", "b", "c", "d"}, faults: faults.decide,
		})
		join = append(join, g.fleet.Members().Self().Addr)
		guests = append(guests, g)
	}
	meet(ctx, t, guests)
	stop := drive(ctx, guests, s, 40)
	if err := sleep(ctx, whenFull(full, 30*time.Second, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	stop()
	quiet := time.Now()
	for {
		same, what := sameFacts(guests)
		if same {
			break
		}
		if time.Since(quiet) > 2*time.Minute {
			t.Fatalf("trees differ two minutes after the last placement: %s", what)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(quiet)
	var repaired, gaps uint64
	for _, g := range guests {
		st := g.fleet.Stats()
		repaired += st.RepairedBatches
		gaps += st.Gaps
	}
	facts, _ := guests[0].tree.FactDigest(now(), 0, math.MaxInt64, guests[0].names)
	seen := float64(faults.seen.Load())
	atLeast(t, "batches lost on purpose", 100*float64(faults.lost.Load())/seen, 10, "%")
	atLeast(t, "batches doubled on purpose", 100*float64(faults.doubled.Load())/seen, 10, "%")
	atLeast(t, "batches found missing", float64(gaps), 1, "")
	atLeast(t, "batches repaired", float64(repaired), 1, "")
	atLeast(t, "facts in every tree", float64(facts), 1000, "")
	atMost(t, "all trees equal after the last placement", took.Seconds(), whenFull(full, 15.0, 60), "s")
}

// sameFacts says whether all trees hold the same.
func sameFacts(guests []*guest) (same bool, what string) {
	at := now()
	count, xor := guests[0].tree.FactDigest(at, 0, prefixtree.Time(math.MaxInt64), guests[0].names)
	for i, g := range guests[1:] {
		if c, x := g.tree.FactDigest(at, 0, prefixtree.Time(math.MaxInt64), g.names); c != count || x != xor {
			return false, fmt.Sprintf("%d facts (%016x) at the first member, %d (%016x) at member %d", count, xor, c, x, i+2)
		}
	}
	return true, ""
}

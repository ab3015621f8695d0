package fleet_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestDisks(t *testing.T) {
	t.Parallel()
	f := start(t, fleet.Config{Binary: instrumented(t), Nodes: 3, Engines: 1, NoBalancer: true, Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w := newWrites(t)
	a := agree(ctx, t, f, 3)
	if files, err := os.ReadDir(a.leader.DataDir()); err != nil || len(files) == 0 {
		t.Fatalf("nothing in %s: %v", a.leader.DataDir(), err)
	}
	loses := func(what string, strike func(*fleet.Node) error) (struck *fleet.Node) {
		t.Helper()
		struck = agree(ctx, t, f, 3).leader
		id, err := struck.Raft(ctx)
		if err = errors.Join(err, strike(struck)); err != nil {
			t.Fatal(err)
		}
		other := without(f.Nodes(), struck)[0]
		for {
			_, _ = w.write(ctx, other) // the disk is not used before a write
			if st, err := other.Raft(ctx); err == nil && st.Leader != "" && st.Leader != id.ID {
				break
			}
			if sleep(ctx, 20*time.Millisecond) != nil {
				t.Fatalf("%s: the leader leads on", what)
			}
		}
		w.until(ctx, t, other)
		return struck
	}
	full := loses("full", (*fleet.Node).FillDisk)
	if err := full.HealDisk(); err != nil {
		t.Fatal(err)
	}
	agree(ctx, t, f, 3)
	hanging := loses("hangs", (*fleet.Node).HangDisk)
	if err := hanging.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := hanging.HealDisk(); err != nil {
		t.Fatal(err)
	}
	restart(ctx, t, hanging)
	agree(ctx, t, f, 3)
	w.check(ctx, t, f)
}

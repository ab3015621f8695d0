package raftstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func usedData(t *testing.T) []byte {
	t.Helper()
	dir := memoryDir(t)
	timers := quickTimers()
	timers.SnapshotAfter, timers.KeepLog = 200, 200
	s, err := Open(Config{Dir: dir, Server: true, Timers: timers})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		apply(t, s, add(fmt.Sprintf("a-backend-with-a-rather-long-name-%d", i)))
	}
	until(t, "a snapshot, and the end to be noted", func() bool {
		meta, _, err := snapshotStore{s.current().disk}.load(false)
		index, errNoted := noted(s.current().disk)
		return err == nil && meta != nil && errNoted == nil && index >= s.State().Version
	})
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Opening makes up for a lost transaction with an empty one.
	if s, err = Open(Config{Dir: dir, Server: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimRight(raw, "\x00") // the rest is a hole
}

func openDamaged(t *testing.T, dir string, raw []byte) (id string, backends int, err error) {
	t.Helper()
	path := filepath.Join(dir, dataFile)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if len(raw) > 0 {
		if err := os.Truncate(path, 16<<20); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(Config{Dir: dir, Server: true, Timers: quickTimers()})
	if err != nil {
		return "", 0, err
	}
	if s.Status().DiskFailed {
		t.Errorf("damage is taken for a disk that fails: %+v", s.Status())
	}
	id, backends = s.ID(), len(s.State().Backends)
	return id, backends, s.Stop(context.Background())
}

// A node with damaged data starts with all of it or reports the damage.
func TestDamageIsToldOrHarmless(t *testing.T) {
	t.Parallel()
	const page = 4096
	good, r := usedData(t), seeded(t)
	dir := memoryDir(t)
	id, backends, err := openDamaged(t, dir, good)
	if err != nil || backends != 300 {
		t.Fatalf("without damage: %d backends, %v", backends, err)
	}
	pages := len(good) / page
	pick := func() int { return r.IntN(pages) * page }
	kinds := []struct {
		name string
		do   func([]byte, *rand.Rand)
	}{
		{"a bit", func(b []byte, r *rand.Rand) { b[r.IntN(len(b))] ^= 1 << r.IntN(8) }},
		{"the head of a page", func(b []byte, r *rand.Rand) { b[pick()+r.IntN(32)] ^= byte(1 + r.IntN(255)) }},
		{"a list of elements", func(b []byte, r *rand.Rand) { b[pick()+16+r.IntN(256)] = byte(r.Uint32()) }},
		{"a page of zeroes", func(b []byte, _ *rand.Rand) { clear(b[pick():][:page]) }},
		{"a page in the place of another", func(b []byte, _ *rand.Rand) { copy(b[pick():][:page], b[pick():][:page]) }},
		{"random bytes", func(b []byte, r *rand.Rand) {
			for i, at := 0, pick(); i < 64; i++ {
				b[at+i] = byte(r.Uint32())
			}
		}},
	}
	told, harmless := 0, 0
	for trial := range 600 {
		kind, b := kinds[trial%len(kinds)], bytes.Clone(good)
		kind.do(b, r)
		gotID, got, err := openDamaged(t, dir, b)
		switch {
		case err == nil && (gotID != id || got != 300):
			t.Errorf("trial %d, %s: the node starts as %s with %d backends", trial, kind.name, gotID, got)
		case err == nil:
			harmless++
		case !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), dir):
			t.Errorf("trial %d, %s: %v", trial, kind.name, err)
		default:
			told++
		}
	}
	t.Logf("of %d damages %d were told and %d did no harm", told+harmless, told, harmless)
	if told < 50 || harmless < 50 {
		t.Error("the damages are not as random as they should be")
	}
}

// A file without a bucket is never a new node's.
func TestDataIsMissing(t *testing.T) {
	t.Parallel()
	good, dir := usedData(t), memoryDir(t)
	renamed := bytes.ReplaceAll(good, []byte("log"), []byte("lof"))
	for name, raw := range map[string][]byte{"no log": renamed, "empty": nil, "cut off": good[:4096]} {
		_, backends, err := openDamaged(t, dir, raw)
		if err == nil || !strings.Contains(err.Error(), dataFile+" is damaged") || !strings.Contains(err.Error(), "start this node with join") {
			t.Errorf("%s: the node starts with %d backends: %v", name, backends, err)
		}
		if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: inspection gives %v", name, err)
		}
	}
}

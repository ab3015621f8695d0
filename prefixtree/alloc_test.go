//go:build !race

package prefixtree

import (
	"testing"
	"time"
)

func TestHotPathDoesNotAllocate(t *testing.T) {
	tree := newTree(t, Config{})
	hasher := newHasher(t)
	prompt := make([]byte, promptBytes+100)
	var c Chain
	c.Reset(hasher)
	c.Write(prompt)
	chain := c.Hashes()
	for b := range Backend(200) {
		tree.Record(b, chain[:1+int(b)], start, nil)
	}
	var m Matches
	var tr TouchHistory
	now := start
	facts := tree.AppendFacts(nil, 1, chain, start)
	const grain = Time(defaultHorizon/time.Millisecond) / grainsPerHorizon
	out, payload := NewOutbox(0), make([]byte, 0, 64<<10)
	changes := 0
	count := Config{Changed: func(news []Fact) { changes += len(news) }}
	taking, telling, other := newTree(t, count), newTree(t, Config{Changed: out.Add}), newTree(t, count)
	var names Names = oneToOne{}
	var err error
	for name, f := range map[string]func(){
		"Chain": func() {
			c.Reset(hasher)
			c.Root(prompt[:20])
			c.Write(prompt[:70])
			c.Write(prompt[70:])
		},
		"Match":            func() { tree.Match(&m, chain, now) },
		"Record and Learn": func() { now++; tree.Record(7, chain, now, &tr); tree.Learn(7, chain, &tr, 100, now+1) },
		"Revert":           func() { now++; tree.Record(9, chain, now, &tr); tree.Revert(9, chain, &tr) },
		"Apply":            func() { now++; facts[9].Time = now; tree.Apply(facts[9]) },
		"Record, Learn and Revert with Changed": func() {
			now += grain + 1
			taking.Record(10, chain, now, &tr)
			taking.Learn(10, chain, &tr, -1, now+1)
			taking.Revert(10, chain, &tr)
		},
		"Outbox, ApplyDelta": func() {
			now += grain + 1
			telling.Record(11, chain, now, &tr)
			payload, _ = out.Drain(payload[:0], 64<<10, names)
			if _, err = other.ApplyDelta(payload, names, 0, now); err != nil {
				t.Fatal(err)
			}
		},
	} {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if changes == 0 {
		t.Error("nothing was published")
	}
}

package health

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

// world is a fleet of boards in virtual time; reports arrive after a delay.
type world struct {
	t        *testing.T
	now      time.Time
	delay    time.Duration
	boards   []*Board
	told     []string
	events   []event
	answer   func(node int, key uint32, at time.Time) (Reason, time.Duration)
	cut      map[int]bool
	backends []Backend
	leader   int
	commit   time.Duration
	written  []string
	renewed  []Generation
}

type event struct {
	at time.Time
	do func()
}

const (
	simInterval = time.Second
	simTimeout  = 1500 * time.Millisecond
)

func newWorld(t *testing.T, nodes, engines int, seed uint64) *world {
	w := &world{
		t: t, now: start, delay: 60 * time.Millisecond, commit: 30 * time.Millisecond, told: make([]string, nodes), cut: make(map[int]bool),
		answer: func(int, uint32, time.Time) (Reason, time.Duration) { return NoReason, 2 * time.Millisecond },
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i := range nodes {
		w.boards = append(w.boards, New(Config{
			Self: nodeName(i), Interval: simInterval, Timeout: simTimeout, Jitter: rnd.Float64,
		}))
	}
	for i := range engines {
		w.backends = append(w.backends, Backend{Key: uint32(i + 1), Name: fmt.Sprintf("engine-%d", i), Generation: 1})
	}
	w.setBackends()
	w.setNodes()
	return w
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func (w *world) setBackends() {
	for _, b := range w.boards {
		b.SetBackends(w.backends, w.now)
	}
}

func (w *world) setNodes() {
	for i, b := range w.boards {
		var others []string
		for j := range w.boards {
			if i != j && !w.cut[i] && !w.cut[j] {
				others = append(others, nodeName(j))
			}
		}
		b.SetNodes(others, w.now)
	}
}

func (w *world) after(d time.Duration, do func()) {
	w.events = append(w.events, event{w.now.Add(d), do})
}

func (w *world) tell(i int) {
	reports := w.boards[i].Reports(nil, w.now)
	blob := AppendReports(nil, reports)
	if string(blob) == w.told[i] || w.cut[i] {
		return
	}
	w.told[i] = string(blob)
	for j, b := range w.boards {
		if j == i || w.cut[j] {
			continue
		}
		said, err := ParseReports(nil, blob)
		if err != nil {
			w.t.Fatal(err)
		}
		w.after(w.delay, func() {
			if b.SetPeer(nodeName(i), said, w.now) {
				w.tell(j)
			}
		})
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(5 * time.Millisecond) {
		var due []event
		w.events = slices.DeleteFunc(w.events, func(e event) bool {
			if e.at.After(w.now) {
				return false
			}
			due = append(due, e)
			return true
		})
		for _, e := range due {
			e.do()
		}
		for i, b := range w.boards {
			probes, _ := b.Due(nil, w.now)
			for _, p := range probes {
				why, took := w.answer(i, p.Backend, w.now)
				if took >= simTimeout {
					took = simTimeout
					if why != Connect {
						why = Timeout
					}
				}
				w.after(took, func() {
					if changed, _ := b.Probed(p, why, w.now); changed {
						w.tell(i)
					}
				})
			}
			if w.now.UnixMilli()%100 == 0 {
				w.tell(i)
			}
		}
		if w.now.UnixMilli()%100 == 0 && !w.cut[w.leader] {
			for _, p := range w.boards[w.leader].Proposals(w.now) {
				w.after(w.commit, func() { w.write(p) })
			}
		}
	}
}

func (w *world) write(p Proposal) {
	action := "up"
	if p.Down {
		action = "down"
	}
	w.renewed = append(w.renewed, p.Renew...)
	for i := range w.backends {
		if b := &w.backends[i]; slices.Contains(p.Names, b.Name) {
			b.Down, b.Ours, b.Reason = p.Down, p.Down, p.Reason
			w.written = append(w.written, fmt.Sprintf("%s %s", action, b.Name))
		}
	}
	w.backends = slices.Clone(w.backends)
	w.setBackends()
}

func (w *world) avoiding(key uint32) (n int) {
	for _, b := range w.boards {
		if slices.Contains(b.Avoid(nil, w.now), key) {
			n++
		}
	}
	return n
}

func (w *world) until(d time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	from := w.now
	for !ok() {
		if w.now.Sub(from) > d {
			w.t.Fatalf("not within %s: %s", d, what)
		}
		w.run(5 * time.Millisecond)
	}
	return w.now.Sub(from)
}

func (w *world) down(name string) bool {
	return slices.ContainsFunc(w.backends, func(b Backend) bool { return b.Name == name && b.Down })
}

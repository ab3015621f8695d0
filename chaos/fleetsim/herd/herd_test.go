package main

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/report"
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name             string
		scores           []score
		tail, near, past bool
		rival, best      string
	}{
		{"best at both", []score{{policy: "a", p99: 10, hit: .5}, {policy: "b", p99: 11, hit: .4}, {policy: "c", p99: 30, hit: .9}}, true, true, true, "b", "a"},
		{"tail at the limit", []score{{policy: "a", p99: 10.5, hit: .5}, {policy: "b", p99: 10, hit: .4}}, true, true, true, "b", "a"},
		{"tail beyond it", []score{{policy: "a", p99: 10.6, hit: .5}, {policy: "b", p99: 10, hit: .4}}, false, true, true, "b", "a"},
		{"hits short", []score{{policy: "a", p99: 10, hit: .48}, {policy: "b", p99: 12, hit: .5}, {policy: "c", p99: 10, hit: .2}}, true, false, false, "c", "b"},
		{"comparable with itself only", []score{{policy: "a", p99: 10.4, hit: .4}, {policy: "b", p99: 10, hit: .3}, {policy: "c", p99: 12.2, hit: .5}}, true, false, true, "b", "c"},
		{"comparable with the best only", []score{{policy: "a", p99: 8, hit: .4}, {policy: "b", p99: 10, hit: .3}, {policy: "c", p99: 11, hit: .5}}, true, true, false, "b", "a"},
		{"no hits anywhere", []score{{policy: "a", p99: 1}, {policy: "b", p99: 1}}, true, true, true, "b", "a"},
	} {
		v := grids[0].judge(c.scores)
		if v.tailOK != c.tail || v.nearOK != c.near || v.rivalOK != c.past || v.rival.policy != c.rival || v.nearHit.policy != c.best {
			t.Errorf("%s: %+v", c.name, v)
		}
		if v.ok() != (c.tail && c.near && c.past) {
			t.Errorf("%s: ok is %v", c.name, v.ok())
		}
	}
}

func fill(t *testing.T, b *book, o options) {
	t.Helper()
	for _, sc := range o.scenes {
		for _, nodes := range o.nodes {
			for _, seed := range o.seeds {
				for i, policy := range o.policies {
					var reps []report.Report
					for _, share := range o.shares {
						for _, d := range o.delays {
							r := report.Report{HitRate: 0.3, Sharing: &report.Sharing{Share: string(share)}}
							r.TTFT.P99 = float64(1000 * (i + nodes))
							r.TTFT.Mean = 100
							if i == 0 && nodes == 100 {
								r.TTFT.Mean = 110
							}
							if d >= 0 {
								ms := float64(d.Milliseconds())
								r.StalenessMS = &ms
							}
							reps = append(reps, r)
						}
					}
					if err := b.add(job{sc, seed, nodes, policy}, reps, time.Second); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

func TestBookGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "herd.jsonl")
	few := *grids[0]
	few.nodes = []int{1, 3}
	o := options{grid: &few, seeds: []uint64{1, 2}, policies: []string{"prefix", "argmin"}}
	open := func(code string, again ...string) *book {
		b, err := openBook(path, code, again)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.close)
		return b
	}
	fill(t, open("v1"), o)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, whole[:40]...), 0o600); err != nil {
		t.Fatal(err)
	}
	j := job{o.scenes[1], 2, 3, "argmin"}
	b := open("v1")
	if !b.has(j) || b.has(job{o.scenes[1], 3, 3, "argmin"}) {
		t.Error("what was played is not what is kept")
	}
	if err := b.add(job{o.scenes[0], 9, 1, "argmin"}, nil, 0); err != nil {
		t.Fatal(err)
	}
	if b = open("v1"); !b.has(job{o.scenes[0], 9, 1, "argmin"}) {
		t.Error("the line after a broken one is lost")
	}
	if open("v2").has(j) {
		t.Error("another version's figures pass for this one's")
	}
	if b := open("v2", "prefix"); !b.has(j) || b.has(job{o.scenes[1], 2, 3, "prefix"}) {
		t.Error("-again prefix: want the others from the book, and prefix played anew")
	}
}

func TestTableAndPicture(t *testing.T) {
	b, err := openBook(filepath.Join(t.TempDir(), "herd.jsonl"), "v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	o := options{grid: grids[0], seeds: []uint64{1}, policies: []string{"prefix", "argmin", "session"}}
	fill(t, b, o)
	s := summarise(o, b)
	if want := 2 * (1 + 3*(3*4+1)); len(s.points) != want || s.missing != 0 {
		t.Errorf("%d points and %d missing, want %d", len(s.points), s.missing, want)
	}
	text := s.markdown()
	for _, want := range []string{"| both | 24 | 24 | 24 | 24 |", "| **all** | 80 | 80 | 80 | 80 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if got, want := strings.Count(s.csv(), "\n"), 1+80*len(o.policies); got != want {
		t.Errorf("%d lines of CSV, want %d", got, want)
	}
	d := xml.NewDecoder(strings.NewReader(s.svg()))
	lines := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if want := len(o.scenes) * len(metrics) * 9 * len(o.policies); lines != want {
		t.Errorf("%d lines in the picture, want %d", lines, want)
	}
	o.seeds = []uint64{1, 2}
	if s := summarise(o, b); len(s.points) != 0 || s.missing != 80 {
		t.Errorf("half of the seeds made %d points", len(s.points))
	}
}

// The grid of traces asks for means, too, and compares fleets with one node.
func TestTracesTable(t *testing.T) {
	b, err := openBook(filepath.Join(t.TempDir(), "traces.jsonl"), "v1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	o := options{grid: grids[1], seeds: []uint64{1}, policies: []string{"prefix", "argmin"}}
	fill(t, b, o)
	s := summarise(o, b)
	if want := 20 * (1 + 3*2); len(s.points) != want || s.missing != 0 {
		t.Errorf("%d points and %d missing, want %d", len(s.points), s.missing, want)
	}
	text := s.markdown()
	// The judged policy's p99 is least everywhere, its mean is 1.1 times the other's where there are 100 nodes.
	for _, want := range []string{
		"| 1 | 20 | 20 | 20 | 20 | 20 |", "| 100 | 40 | 40 | 0 | 40 | 40 |", "| **all** | 140 | 140 | 100 | 140 | 140 |",
		"| claude_code | 2 | 100 | both | 1 s |", "| conversation | 2.277 | **8.000** | 1.000 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

func TestCodeDigest(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	a, err := codeDigest(root)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := codeDigest(root); err != nil || a != b {
		t.Errorf("%q, then %q, %v", a, b, err)
	}
	if _, err := codeDigest(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without source: %v", err)
	}
}

func TestFlags(t *testing.T) {
	o, err := parse(nil)
	if err != nil || len(o.seeds) != 5 || len(o.nodes) != 4 || o.policies[0] != "prefix" || len(o.policies) != 11 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse([]string{"-grid", "traces", "-nodes", "1,8"}); err != nil || len(o.scenes) != 20 || len(o.nodes) != 2 || o.cache != filepath.Join("out", "traces.jsonl") {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse([]string{"-grid", "traces", "-scenes", "rag,weka"}); err != nil || len(o.scenes) != 5 || len(grids[1].scenes) != 20 {
		t.Errorf("%+v, %v", o, err)
	} else if text := (&summary{options: o}).markdown(); !strings.Contains(text, "Made by `make traces GRID='-scenes rag,weka'` (seeds") {
		t.Errorf("the table of a part does not say of which:\n%s", text)
	}
	for _, args := range [][]string{{"-seeds", "x"}, {"-scenes", "kimi"}, {"-grid", "sites"}, {"-nodes", ""}, {"-policies", "prefix"}, {"extra"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

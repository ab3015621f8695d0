package family

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/report"
)

func TestDrawsFollowFromSeedAndNumber(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(2) {
		for k := 1; k <= 20; k++ {
			a, b := NewDraw(seed, k, 0), NewDraw(seed, k, 0)
			if a.String() != b.String() {
				t.Errorf("draw %d of seed %d is %s, then %s", k, seed, &a, &b)
			}
			if seen[a.String()] {
				t.Errorf("draw %d of seed %d is another's", k, seed)
			}
			seen[a.String()] = true
		}
	}
	d := NewDraw(1, 1, 0)
	if d.String() == "" || d.Command() != "grapevine-lab simulate --family-draw 1 --seed 1" {
		t.Errorf("%s: %s", &d, d.Command())
	}
	a, b := NewDraw(1, 3, 200), NewDraw(1, 3, 200)
	x, y := a.build(), b.build()
	if fmt.Sprint(x.engines) != fmt.Sprint(y.engines) || fmt.Sprint(x.script.Calls) != fmt.Sprint(y.script.Calls) {
		t.Error("one draw makes two sites")
	}
}

// Fifty draws have every value of what is dealt, and even loads.
func TestDrawsCover(t *testing.T) {
	found := map[string]int{}
	var loads, caches []float64
	for k := 1; k <= 50; k++ {
		d := NewDraw(4, k, 0)
		share := 0.0
		for _, tr := range d.Traffic {
			share += tr.Share
			found[tr.Kind]++
		}
		for _, x := range []string{fmt.Sprint(d.Nodes, " nodes"), fmt.Sprint(d.StalenessMS, " ms"), d.Fleet, d.Arrivals, fmt.Sprint(d.Models, " models")} {
			found[x]++
		}
		loads, caches = append(loads, d.Load), append(caches, d.Cache)
		if d.Engines < 4 || d.Engines > 32 || d.Load < 0.3 || d.Load > 0.95 || d.Cache < 0.3 || d.Cache > 3 || math.Abs(share-1) > 0.02 ||
			d.Requests < 2000 || d.Requests > 6000 {
			t.Errorf("draw %s", &d)
		}
	}
	if want := len(nodeCounts) + len(delaysMS) + len(fleetKinds) + len(arrivalKinds) + 3 + len(kinds); len(found) != want {
		t.Errorf("%d values of %d: %v", len(found), want, found)
	}
	for x, n := range found {
		if n < 5 {
			t.Errorf("%s: %d of 50 draws", x, n)
		}
	}
	for _, v := range [][]float64{loads, caches} {
		slices.Sort(v)
	}
	for i := range 49 {
		if gap := loads[i+1] - loads[i]; gap > 0.05 {
			t.Errorf("no load between %v and %v", loads[i], loads[i+1])
		}
		if caches[i+1] > 1.2*caches[i] {
			t.Errorf("no cache between %v and %v", caches[i], caches[i+1])
		}
	}
}

// of is a draw with one kind of traffic.
func of(kind int) Draw {
	d := NewDraw(9, 1, 600)
	d.Traffic, d.Models, d.Fleet, d.Arrivals, d.Cache = nil, 1, "equal", "poisson", 3
	for k := 1; d.Traffic == nil; k++ {
		if other := NewDraw(9, k, 0); other.Traffic[0].Kind == kinds[kind].name {
			d.Traffic = other.Traffic[:1]
		}
	}
	return d
}

func TestKindsShareWhatTheySay(t *testing.T) {
	for kind := range kinds {
		d := of(kind)
		calls := d.build().script.Calls
		seen := map[uint64]bool{}
		var tokens, shared, extends, forks float64
		next := map[int]int{}
		for _, c := range calls {
			held := 0
			for _, k := range c.Prompt.Keys() {
				if seen[k] {
					held++
				}
			}
			for _, k := range c.Answered.Keys() {
				seen[k] = true
			}
			tokens, shared = tokens+float64(c.Prompt.Tokens()), shared+float64(held*keyTokens)
			if c.After >= 0 {
				if next[c.After]++; next[c.After] == 2 {
					forks++
				}
				before := calls[c.After].Prompt.Keys()
				if len(before) > 0 && len(c.Prompt.Keys()) > 0 && before[0] == c.Prompt.Keys()[0] {
					extends++
				}
			}
		}
		follow := 0
		for _, c := range calls {
			if c.Turn > 1 {
				follow++
			}
			if (c.Session >= 0) != (d.Traffic[0].Turns > 1) {
				t.Errorf("%s: session %d", kinds[kind].name, c.Session)
			}
		}
		share := shared / tokens
		switch name := kinds[kind].name; name {
		case "unique prompts":
			if share > 0 || follow > 0 {
				t.Errorf("%s: %.2f shared, %d follow-ups", name, share, follow)
			}
		case "system prompts", "documents":
			if share < 0.1 || follow > 0 {
				t.Errorf("%s: %.2f shared, %d follow-ups", name, share, follow)
			}
		default:
			if share < 0.3 || follow < len(calls)/3 || int(extends) != follow || (forks > 0) != (name == "agents") {
				t.Errorf("%s: %.2f shared, %d follow-ups of %d, %v extend, %v fork", name, share, follow, len(calls), extends, forks)
			}
		}
	}
}

func TestArrivals(t *testing.T) {
	d := of(4)
	d.Requests, d.LengthS = 20_000, 300
	rate := func(arrivals string, buckets int) (v []float64) {
		d.Arrivals = arrivals
		v = make([]float64, buckets)
		for _, c := range d.build().script.Calls {
			v[int(c.At*time.Duration(buckets)/d.length())]++
		}
		return v
	}
	steady := rate("poisson", 30)
	if slices.Max(steady) > 1.3*slices.Min(steady) {
		t.Errorf("poisson: %v", steady)
	}
	bursts := rate("bursts", 300)
	slices.Sort(bursts)
	if low, high := bursts[100], bursts[285]; high < 7*low || high > 13*low {
		t.Errorf("bursts: %v requests/s, and usually %v", high, low)
	}
	daily := rate("daily", 30)
	if peak, trough := daily[15], daily[0]; peak < 3*trough || peak > 5.5*trough {
		t.Errorf("daily: from %v to %v", trough, peak)
	}
}

// One engine with one cache computes what the load says.
func TestLoadIsWhatOneCacheComputes(t *testing.T) {
	for kind := range kinds {
		for _, load := range []float64{0.4, 0.8} {
			d := of(kind)
			d.Engines, d.Nodes, d.Load = 1, 1, load
			r, err := play(t.Context(), d, []string{Judged})
			if err != nil {
				t.Fatal(err)
			}
			if is := r.Runs[0].Utilization; is < 0.85*load || is > 1.15*load {
				t.Errorf("%s: busy %v at load %v", kinds[kind].name, is, load)
			}
		}
	}
}

func TestMachines(t *testing.T) {
	d := of(0)
	d.Engines, d.Models, d.LengthS = 12, 3, 200
	for _, d.Fleet = range fleetKinds {
		var speeds []float64
		late, slow := 0, 0
		for _, m := range d.machines() {
			speeds = append(speeds, m.speed)
			if m.Joins > 0 {
				late++
			}
			if m.SlowBy == slowdown {
				slow++
				if full := (d.length() - d.warmup()).Seconds(); m.capacity(&d) >= 0.7*full {
					t.Errorf("a slow engine computes %v of %v s", m.capacity(&d), full)
				}
			}
		}
		mixed := slices.Max(speeds) > 1.5*slices.Min(speeds)
		if mixed != (d.Fleet == "mixed") || slow != map[bool]int{true: 1}[d.Fleet == "degrading"] || late != map[bool]int{true: 3}[d.Fleet == "joining"] ||
			slices.Max(speeds) > uneven {
			t.Errorf("%s: speeds %v, %d join, %d become slow", d.Fleet, speeds, late, slow)
		}
	}
}

func TestPlay(t *testing.T) {
	text := func(parallel int, draws ...int) string {
		ended := 0
		results, err := Play(t.Context(), Options{
			Seed: 5, Draws: draws, Requests: 60, Oracles: []string{"contents", "load"}, Parallel: parallel,
			Progress: func(n int, _ time.Duration, _ *Draw) { ended = n },
		})
		if err != nil || ended != len(draws) {
			t.Fatal(ended, err)
		}
		for i := range results {
			r := &results[i]
			if r.Draw.Number != draws[i] || r.judged().Policy != Judged || len(r.others()) != 10 || r.run("prefix+contents+load").Nodes != r.Draw.Nodes ||
				(r.alone() == nil) != (r.Draw.Nodes == 1) || r.alone() != nil && (r.alone().Nodes != 1 || r.alone().Policy != Judged) {
				t.Errorf("%s: %+v", &r.Draw, r.Runs)
			}
			for _, p := range r.Runs {
				if p.Errors > 0 || p.Requests == 0 {
					t.Errorf("%s: %s: %d requests, %d errors", &r.Draw, p.Policy, p.Requests, p.Errors)
				}
			}
		}
		out, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	two := text(2, 1, 2)
	if again := text(1, 1, 2); again != two {
		t.Error("equal seeds differ")
	}
	if second := strings.Trim(text(1, 2), "[]"); !strings.HasSuffix(strings.Trim(two, "[]"), second) {
		t.Error("a draw by itself is another")
	}
	if _, err := Play(t.Context(), Options{Draws: []int{1}, Requests: 10, Oracles: []string{"luck"}, Parallel: 1}); err == nil {
		t.Error("an unknown oracle is taken")
	}
}

// made is a draw whose judged policy has these figures; the other has 100 ms and half of all hits.
func made(number int, p99, hits, aloneHits float64) Result {
	run := func(policy string, p99, hits float64) (r report.Report) {
		r.Policy, r.HitRate, r.TTFT.P99, r.TTFT.Mean = policy, hits, p99, p99/2
		return r
	}
	d := NewDraw(1, number, 0)
	d.Nodes = 3
	return Result{d, []report.Report{
		run(Judged, p99, hits), run("argmin", 100, 0.2), run("session", 300, 0.5), run("prefix+load", 50, 0.5), run(Judged, 80, aloneHits),
	}}
}

func TestSummary(t *testing.T) {
	var results []Result
	for i := range 20 {
		results = append(results, made(i+1, 80+float64(i), 0.5, 0.5))
	}
	results[3] = made(4, 130, 0.1, 0.5)
	var b bytes.Buffer
	if err := Write(&b, results, []string{"load"}); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"the best other policy first token p99 20 0.800 0.810 0.900 0.980 1.300 95",
		"itself on one node hits 20 0.200 1.000 1.000 1.000 1.000 95",
		"prefix+load first token p99 20 1.600 1.620 1.800 1.960 2.600 0",
		"argmin 20 0.800 0.810 0.900 0.980 1.300 95",
		"session 0 0.267 0.270 0.300 0.327 0.433 100",
		"p99 over the best other policy, median: holds, 0.900 (wanted 0.95)",
		"p99 over the best other policy, p90: holds, 0.980 (wanted 1.05)",
		"p99 over the best other policy, worst: misses, 1.300 (wanted 1.25)",
		"share of draws: holds, 0.950 (wanted 0.90)",
		"1.300 prefix: 0.13 s, 10.0 % hits; argmin: 0.10 s, 20.0 % hits",
		results[3].Draw.Command(),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	b.Reset()
	if err := Picture(&b, results, []string{"load"}); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for d := xml.NewDecoder(&b); ; {
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
	if want := len(measures) * 4; lines != want {
		t.Errorf("%d lines, want %d", lines, want)
	}
}

// Without several nodes, hits and policies there is little to compare, but no error.
func TestSummaryOfLittle(t *testing.T) {
	one := made(1, 90, 0, 0)
	one.Draw.Nodes, one.Runs = 1, one.Runs[:2]
	one.Runs[1].HitRate = 0
	var b bytes.Buffer
	if err := Write(&b, []Result{one}, nil); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), "itself on one node first token p99 0 -") {
		t.Errorf("%v\n%s", err, &b)
	}
}

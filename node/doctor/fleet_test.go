package doctor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/prompt"
)

// sampled gives a doctor the requests from to to of a planted case, a second apart.
func sampled(t *testing.T, d *Doctor, p planted, from, to int) {
	t.Helper()
	h, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	parser := prompt.NewParser(h)
	for i := from; i < to; i++ {
		body, err := json.Marshal(p.request(i))
		if err != nil {
			t.Fatal(err)
		}
		var r prompt.Request
		if err := parser.Parse(prompt.Chat, body, prompt.Options{}, &r); err != nil {
			t.Fatal(err)
		}
		s := &prompt.Sketch{Seed: d.seed}
		parser.Sketch(s)
		d.add(Application{Model: "m"}, sample{at: time.Unix(int64(i), 0), sketch: s, tokens: float64(r.PromptBytes) / 4, rate: 1000}, 1)
	}
}

// Nodes with other seeds that each saw a part of the requests find together what one finds that saw all.
func TestReportsOfPeersAddUp(t *testing.T) {
	t.Parallel()
	p := plants()[0]
	nodes := []*Doctor{New(16), New(16), New(16)}
	whole := New(16)
	now := time.Unix(60, 0)
	for i, d := range nodes {
		sampled(t, d, p, 20*i, 20*i+20)
		if i > 0 {
			if err := nodes[0].Received(fmt.Sprint("node", i), d.Section(now)); err != nil {
				t.Fatal(err)
			}
		}
	}
	sampled(t, whole, p, 0, 60)
	r, all := nodes[0].Report(now), whole.Report(now)
	p.check(t, r)
	if r.Reporting != 3 || r.Applications[0].Samples != 60 {
		t.Errorf("%d nodes, %+v", r.Reporting, r.Applications[0])
	}
	// The nodes' spans differ, so rates do; shares of tokens do not.
	part := func(r *Report) float64 {
		return r.Applications[0].Findings[0].SavedTokens / r.Applications[0].PromptTokens
	}
	if a, b := part(r), part(all); a < 0.95*b || a > 1.05*b {
		t.Errorf("%.3f of the tokens are saved, %.3f by one node that saw all", a, b)
	}
	nodes[0].DropPeer("node1")
	if err := nodes[0].Received("node2", nil); err != nil {
		t.Fatal(err)
	}
	if r := nodes[0].Report(now); r.Reporting != 1 || r.Applications[0].Samples != 20 {
		t.Errorf("%d nodes after the others have left: %+v", r.Reporting, r.Applications[0])
	}
}

func TestSectionsAreBounded(t *testing.T) {
	t.Parallel()
	d := New(16)
	if d.Section(time.Unix(0, 0)) != nil {
		t.Error("a section without requests")
	}
	for i := range maxApplications {
		d.add(Application{Client: strings.Repeat("c", maxName), Rule: strings.Repeat("r", maxName), Model: fmt.Sprint(strings.Repeat("m", maxName), i)}, sample{at: time.Unix(0, 0), sketch: &prompt.Sketch{}, tokens: 1}, 1)
	}
	section := d.Section(time.Unix(1, 0))
	if len(section) == 0 || len(section) > maxSection {
		t.Errorf("a section of %d bytes", len(section))
	}
	if again := d.Section(time.Unix(1, 0).Add(sectionPeriod / 2)); &again[0] != &section[0] {
		t.Error("a new section within a minute")
	}
	for _, bad := range []string{"{", `[{"requests":-1}]`, `[{"requests":1e300}]`, `[{"findings":[{"saved_tokens":1e16}]}]`, "[" + strings.Repeat("{},", 40) + "{}]", strings.Repeat(" ", maxSection) + "[]"} {
		if d.Received("peer", []byte(bad)) == nil {
			t.Errorf("%.40q is accepted", bad)
		}
	}
}

func FuzzReceived(f *testing.F) {
	f.Add([]byte(`[{"model":"m","requests":1,"prompt_tokens":1,"findings":[{"field":"system","kind":"order","saved_tokens":1}]},{"model":"m"}]`))
	f.Fuzz(func(t *testing.T, section []byte) {
		d := New(1)
		if d.Received("a", section) != nil {
			return
		}
		if err := d.Received("b", section); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(d.Report(time.Now())); err != nil {
			t.Errorf("the report cannot be written: %v", err)
		}
	})
}

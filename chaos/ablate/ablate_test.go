package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// All mechanisms are removed at once, and the program still compiles, and its build ids differ.
func TestEditsApply(t *testing.T) {
	var all []edit
	names := map[string]bool{}
	for _, v := range mechanisms {
		if names[v.name] || v.does == "" || len(v.edits) == 0 || strings.ContainsAny(v.name, " ,") {
			t.Errorf("mechanism %+v", v)
		}
		names[v.name] = true
		all = append(all, v.edits...)
	}
	_, before, err := prepare(t.Context(), root, t.TempDir(), program, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, again, _ := prepare(t.Context(), root, t.TempDir(), program, nil)
	_, without, err := prepare(t.Context(), root, t.TempDir(), program, all)
	if err != nil {
		t.Fatal(err)
	}
	if before != again || before == without {
		t.Errorf("the program has build ids %s, then %s, and %s without any mechanism", before, again, without)
	}
}

// Every variant of strategy weighted edits its default weights, so one after the other is applied.
func TestScorersApply(t *testing.T) {
	names, ids := map[string]bool{}, map[string]bool{}
	for _, v := range scorers {
		_, id, err := prepare(t.Context(), root, t.TempDir(), "./proxy/policy", v.edits)
		if err != nil {
			t.Fatal(err)
		}
		if names[v.name] || ids[id] || v.does == "" || strings.ContainsAny(v.name, " ,") {
			t.Errorf("variant %+v: its name or its program is that of another", v)
		}
		names[v.name], ids[id] = true, true
	}
}

func TestRottenEdits(t *testing.T) {
	for _, e := range []edit{{"go.mod", "no such line", ""}, {"go.mod", "o", ""}, {"no/such/file.go", "o", ""}} {
		if _, _, err := prepare(t.Context(), root, t.TempDir(), program, []edit{e}); err == nil || !strings.Contains(err.Error(), "chaos/ablate") {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

func TestConstants(t *testing.T) {
	list, lines, err := constantsOf(root, decision...)
	if err != nil || lines < 1000 {
		t.Fatalf("%d lines: %v", lines, err)
	}
	found := map[string]string{}
	for _, v := range list {
		found[v.first()] = v.does
	}
	if found["crowding"] != "0.1" || found["LeastRate"] != "0.1 / demandWindow" || found["Cache"] != "" {
		t.Errorf("constants %v", found)
	}
	for name := range fixed {
		if found[name] == "" {
			t.Errorf("%s is left out, but there is no such constant: remove it from chaos/ablate", name)
		}
	}
	// Edits of one declaration replace the same text: each is in a build with edits of others.
	for len(list) > 0 {
		var edits []edit
		var next []variant
		taken := map[string]bool{}
		for _, v := range list {
			switch e := v.edits[0]; {
			case fixed[v.first()] != "":
			case taken[e.old]:
				next = append(next, v)
			default:
				taken[e.old] = true
				edits = append(edits, e)
			}
		}
		if _, _, err := prepare(t.Context(), root, t.TempDir(), "./proxy/policy", edits); err != nil {
			t.Fatal(err)
		}
		list = next
	}
}

func TestKindsOfConstants(t *testing.T) {
	dir := t.TempDir()
	source := `package p
const a, b = 1 << 10, "2"
const (
	c = iota + 1
	d
	e = d
	f = 2.5 * e
)
func g() { const h = 3 }
var i = 4
`
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	list, lines, err := constantsOf(dir, ".")
	var names []string
	for _, v := range list {
		names = append(names, v.name)
	}
	if want := []string{"a doubled", "a halved", "f doubled", "f halved", "h doubled", "h halved"}; err != nil || !slices.Equal(names, want) || lines != 10 {
		t.Errorf("%v in %d lines: %v", names, lines, err)
	}
	if e := list[1].edits[0]; e.text != `a, b = (1 << 10)/2, "2"` {
		t.Errorf("halved: %s", e.text)
	}
}

func TestTable(t *testing.T) {
	original := []outcome{{1, 100, 10, 0.5}, {2, 100, 10, 0.5}, {8, 100, 10, 0.5}}
	worse := []outcome{{1, 100, 10, 0.5}, {2, 200, 10, 0.5}, {8, 200, 11, 0.4}}
	var out strings.Builder
	if err := write(&out, original, []variant{{name: "a", does: "helps"}, {name: "b", does: "idles"}}, [][]outcome{worse, original}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1.587 +- 0.734 (2.00 in 2)", // half of one doubling's logarithm, three draws
		"-3.33 +- 6.67 (-10.0 in 3)",
		"2.000 +- 0.000 (2.00 in 2)", // those of several nodes
		"1.000 +- 0.000 (1.00 in 1)", "+0.00 +- 0.00 (+0.0 in 2)", "no effect\n", "a: helps\n", "b: idles\n", "several nodes",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Count(out.String(), "no effect") != 3 { // of a on several nodes
		t.Errorf("want no effect of b, and of a in all draws:\n%s", &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 131 {
			t.Errorf("%d characters: %s", len(line)-1, line)
		}
	}
	if alone := cells(original[:1], original[:1], 1); !slices.Equal(alone, []string{"-", "-", "-", "0", "no effect"}) {
		t.Errorf("one draw: %v", alone)
	}
}

func TestChoose(t *testing.T) {
	list := []variant{{name: "a doubled"}, {name: "a halved"}, {name: "ab doubled"}}
	for names, want := range map[string]int{"": 3, "a": 2, "ab": 1, "ab,a": 3, "b": 0, "a,": 0} {
		if got, err := choose(list, names); len(got) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", names, got, err)
		}
	}
}

// Results are kept by draws and seed, and read again.
func TestPlayAll(t *testing.T) {
	t.Chdir(root)
	*cache, *draws = filepath.Join(t.TempDir(), "new", "cache.jsonl"), 2
	first, err := playAll(t.Context(), []variant{{name: "as it is"}, mechanisms[2]})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(*cache)
	if err != nil || strings.Count(string(text), "\n") != 2 || len(first) != 2 || len(first[0]) != 2 {
		t.Fatalf("%v\n%s%v", first, text, err)
	}
	again, err := playAll(t.Context(), []variant{{name: "as it is"}, mechanisms[2]})
	after, _ := os.ReadFile(*cache)
	if err != nil || string(after) != string(text) || !slices.EqualFunc(first, again, slices.Equal[[]outcome]) || slices.Equal(first[0], first[1]) {
		t.Errorf("%v, then %v: %v\n%s", first, again, err, after)
	}
	if err := os.WriteFile(*cache, text[:len(text)-9], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := playAll(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "remove the broken line") {
		t.Errorf("a broken line: %v", err)
	}
}

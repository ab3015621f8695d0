package main

import "testing"

func TestBackwards(t *testing.T) {
	for _, tc := range []struct {
		files int
		edges []edge
		want  int
	}{
		{1, nil, 0},
		{4, []edge{{3, 2}, {2, 1}, {1, 0}, {3, 0}}, 0},
		{2, []edge{{0, 1}, {1, 0}}, 1},
		{3, []edge{{0, 1}, {1, 2}, {2, 0}}, 1},
		{5, []edge{{0, 1}, {1, 2}, {2, 0}, {0, 3}, {3, 4}, {4, 0}}, 2},
	} {
		if got := backwards(tc.files, tc.edges); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.edges, got, tc.want)
		}
	}
}

func TestParts(t *testing.T) {
	for path, want := range map[string]part{
		"node/node.go": product, "cmd/grapevine/main.go": product, "chaos/demo/demo.go": harness, "cmd/grapevine-lab/main.go": harness,
		"chaos/demo/demo_test.go": tests, "docs/design.md": documents, "chaos/fleet/DESIGN.md": documents,
	} {
		if got, ok := partOf(path); got != want || !ok {
			t.Errorf("%s: %v, %v", path, got, ok)
		}
	}
	if _, ok := partOf("go.mod"); ok {
		t.Error("go.mod is counted")
	}
}

func TestReferences(t *testing.T) {
	packages, err := load("../figures")
	if err != nil || len(packages) != 1 {
		t.Fatalf("%d packages, %v", len(packages), err)
	}
	got := packages[0].references()
	if len(got) != 2 || got[0].from != got[1].to || got[0].to != got[1].from {
		t.Errorf("%+v", got)
	}
}

func TestWords(t *testing.T) {
	n, err := wordsIn("x.go", []byte("//go:build linux\n\n// Package x - has five words.\npackage x\n\nvar s = \"not counted\"\n"), product)
	if err != nil || n != 5 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := wordsIn("x.md", []byte("# Three | plain words\n\n---\n"), documents); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
}

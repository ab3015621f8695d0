package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grapevine.example/chaos/fleetsim/family"
)

// What a draw is follows from its seed and number alone, so its line is golden; figures are not,
// because they change with the policies.
func TestFamilyGolden(t *testing.T) {
	var lines []string
	for k := 1; k <= 8; k++ {
		d := family.NewDraw(1, k, 0)
		lines = append(lines, d.String(), d.Command())
	}
	got, file := strings.Join(lines, "\n")+"\n", filepath.Join("testdata", "family.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the draws of a seed changed, and docs/family.md with them; if that is meant: go test ./cmd/grapevine-lab -run Golden -update\n%s", got)
	}
}

func TestFamily(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "family.svg")
	line := []string{"--seed", "3", "--requests", "60", "--oracle", "load"}
	whole := lab(append([]string{"simulate", "--family", "2", "--plot", svg}, line...)...)
	for _, want := range []string{"the best other policy", "prefix+load", "p99 over the best other policy, median:", "traffic: ", "simulate --family-draw 2 --seed 3 --requests 60"} {
		if whole.code != 0 || whole.err != "" || !strings.Contains(whole.out, want) {
			t.Fatalf("exit %d, %q, no %q in\n%s", whole.code, whole.err, want, whole.out)
		}
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.Contains(string(text), "<polyline") {
		t.Errorf("no picture: %v", err)
	}
	var family, draw struct {
		Draws []struct {
			Draw struct{ Draw int }
			Runs []struct {
				Policy string
				Nodes  int
				TTFT   struct{ P99 float64 } `json:"ttft_ms"`
			}
		}
	}
	for args, into := range map[string]any{"--family=2": &family, "--family-draw=2": &draw} {
		if err := json.Unmarshal([]byte(lab(append([]string{"simulate", "--json", args}, line...)...).out), into); err != nil {
			t.Fatal(err)
		}
	}
	if len(family.Draws) != 2 || len(draw.Draws) != 1 || draw.Draws[0].Draw.Draw != 2 || !slices.Equal(draw.Draws[0].Runs, family.Draws[1].Runs) {
		t.Errorf("draw 2 of the family is %+v, and by itself %+v", family.Draws, draw.Draws)
	}
	table := lab(append([]string{"simulate", "--family-draw", "2"}, line...)...).out
	if !strings.Contains(table, "prefix+load") || strings.Count(table, "\n") < len(draw.Draws[0].Runs)+3 {
		t.Errorf("draw 2:\n%s", table)
	}
}

// A named policy's runs are those of a family of all policies, with the judged one first.
func TestFamilyOfNamedPolicies(t *testing.T) {
	for policies, want := range map[string][]string{"prefix": {"prefix"}, "session,prefix": {"prefix", "session"}} {
		line := []string{"simulate", "--family", "2", "--seed", "3", "--requests", "60", "--policy", policies}
		var got struct {
			Draws []struct {
				Draw struct{ Nodes int }
				Runs []struct{ Policy string }
			}
		}
		if err := json.Unmarshal([]byte(lab(append(line, "--json")...).out), &got); err != nil || len(got.Draws) != 2 {
			t.Fatalf("%s: %d draws, %v", policies, len(got.Draws), err)
		}
		for _, d := range got.Draws {
			if d.Draw.Nodes > 1 {
				d.Runs = d.Runs[:len(d.Runs)-1] // prefix on one node
			}
			var played []string
			for _, r := range d.Runs {
				played = append(played, r.Policy)
			}
			if !slices.Equal(played, want) {
				t.Errorf("--policy %s plays %v", policies, played)
			}
		}
		table := lab(append(line, "--plot", filepath.Join(t.TempDir(), "family.svg"))...)
		_, row, _ := strings.Cut(table.out, "\nthe best other policy   first token p99 ")
		row, _, _ = strings.Cut(row, "\n")
		if none := strings.Join(strings.Fields(row), " ") == "0 - - - - - -"; table.code != 0 || none != (policies == "prefix") {
			t.Errorf("--policy %s: exit %d, %s\n%s", policies, table.code, table.err, table.out)
		}
	}
}

func TestOraclesOfAWorkload(t *testing.T) {
	got := lab("simulate", "--requests", "50", "--warmup", "0", "--policy", "prefix", "--oracle", "contents,load")
	for _, want := range []string{"prefix ", "prefix+contents ", "prefix+load ", "prefix+contents+load "} {
		if got.code != 0 || !strings.Contains(got.out, "\n"+want) {
			t.Errorf("exit %d, %q, no row %q in\n%s", got.code, got.err, want, got.out)
		}
	}
}

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grapevine.example/cmd/commandline"
)

var update = flag.Bool("update", false, "write the golden files")

type result struct {
	code     int
	out, err string
}

func lab(args ...string) result {
	var out, errs bytes.Buffer
	code := run(args, &streams{strings.NewReader(""), &out, &errs})
	return result{code, out.String(), errs.String()}
}

func TestHelpGolden(t *testing.T) {
	for _, command := range []string{"", "demo", "engine", "replay", "simulate", "chaos", "chaos list", "chaos run"} {
		name, args := "grapevine-lab", []string{"--help"}
		if command != "" {
			name, args = strings.ReplaceAll(command, " ", "-"), append(strings.Fields(command), "--help")
		}
		got := lab(args...)
		if got.code != 0 || got.err != "" {
			t.Errorf("%s --help: exit %d, stderr %q", command, got.code, got.err)
		}
		file := filepath.Join("testdata", "help", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got.out), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.out != string(want) {
			t.Errorf("%s --help changed; if that is meant: go test ./cmd/grapevine-lab -run Golden -update\n%s", command, got.out)
		}
	}
}

func TestExitCodes(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("strategy: session\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		out  string // in stdout, else stdout must be empty
		err  string // in stderr, else stderr must be empty
	}{
		{"version", []string{"--version"}, 0, "grapevine-lab dev\n", ""},
		{"no command", nil, commandline.ExitUsage, "", "expected one of"},
		{"a command of the router", []string{"serve"}, commandline.ExitUsage, "", "unexpected argument serve"},
		{"no such policy", []string{"simulate", "--requests", "1", "--policy", "fastest"}, commandline.ExitUsage, "", "fastest"},
		{"no such workload", []string{"simulate", "--workload", "huge"}, commandline.ExitUsage, "", "huge"},
		{"no such delay", []string{"simulate", "--staleness", "0,soon"}, commandline.ExitUsage, "", `staleness "soon": want a duration`},
		{"shared twice", []string{"simulate", "--share", "both,both"}, commandline.ExitUsage, "", "at most once"},
		{"all lost", []string{"simulate", "--loss", "1"}, commandline.ExitUsage, "", "loss of 1"},
		{"no partition", []string{"simulate", "--partition", "60s"}, commandline.ExitUsage, "", "60s-120s"},
		{"trace and workload", []string{"simulate", "--workload", "chat", "--trace", bad}, commandline.ExitUsage, "", "can't be used together"},
		{"no such oracle", []string{"simulate", "--oracle", "luck"}, commandline.ExitUsage, "", "must be one of"},
		{"an oracle for a blind policy", []string{"simulate", "--policy", "session+load"}, commandline.ExitUsage, "", "session uses no knowledge"},
		{"a family and its draw", []string{"simulate", "--family", "3", "--family-draw", "3"}, commandline.ExitUsage, "", "give one of them"},
		{"a family of nodes", []string{"simulate", "--family", "3", "--nodes", "1"}, commandline.ExitUsage, "", "--nodes: the draws of a family decide this"},
		{"a family without the judged policy", []string{"simulate", "--family", "3", "--policy", "random"}, commandline.ExitUsage, "", "add prefix"},
		{"too large a family", []string{"simulate", "--family", "1000000"}, commandline.ExitUsage, "", "want 1 to 10000"},
		{"too large draws", []string{"simulate", "--family", "3", "--requests", "1000000"}, commandline.ExitUsage, "", "want 1 to 50000"},
		{"no such scenario", []string{"chaos", "run", "router-los"}, commandline.ExitUsage, "", `no scenario "router-los": grapevine-lab chaos list shows them`},
		{"short chaos", []string{"chaos", "run", "router-loss", "--duration", "1s"}, commandline.ExitUsage, "", "1s of traffic: give 27s"},
		{"two schedules", []string{"chaos", "run", "router-loss", "leader-loss", "--schedule", bad}, commandline.ExitUsage, "", "--schedule is for one scenario"},
		{"bad schedule", []string{"chaos", "run", "router-loss", "--schedule", bad}, commandline.ExitUsage, "", `bad.yaml: schedule: line 1: "strategy:" is not a time`},
		{"no router for chaos", []string{"chaos", "run", "router-loss"}, commandline.ExitFailed, "", "make build"},
		{"no engines", []string{"demo", "--engines", "0"}, commandline.ExitUsage, "", "0 engines, want 1 to 32"},
		{"no router for the demo", []string{"demo", "--json"}, commandline.ExitFailed, "", "--router"},
		{"no such router", []string{"demo", "--json", "--router", filepath.Join(dir, "none")}, commandline.ExitFailed, "", filepath.Join(dir, "none")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := lab(tc.args...)
			if got.code != tc.code {
				t.Errorf("exit %d, want %d", got.code, tc.code)
			}
			if !strings.Contains(got.out, tc.out) || tc.out == "" && got.out != "" {
				t.Errorf("stdout: %q, want %q", got.out, tc.out)
			}
			if !strings.Contains(got.err, tc.err) || tc.err == "" && got.err != "" {
				t.Errorf("stderr: %q, want %q", got.err, tc.err)
			}
		})
	}
}

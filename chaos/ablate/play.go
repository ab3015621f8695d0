package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"grapevine.example/chaos/overlay"
)

// outcome is a played draw.
type outcome struct {
	Nodes int
	P99   float64 // of the first token, in ms
	Mean  float64 // likewise
	Hits  float64 // cached share of the prompt tokens
}

const program = "./cmd/grapevine-lab"

// prepare writes the edited files of the module at root, and a list of them for go build -overlay, into dir.
// It returns the list's path and a digest of pkg and all that it imports, which it compiles.
func prepare(ctx context.Context, root, dir, pkg string, edits []edit) (list, ids string, err error) {
	files := make(overlay.Files)
	for _, e := range edits {
		if err := files.Edit(filepath.Join(root, e.file), e.old, e.text); err != nil {
			return "", "", fmt.Errorf("chaos/ablate: %w", err)
		}
	}
	if list, err = files.Write(dir); err != nil {
		return "", "", err
	}
	out, err := run(ctx, "go", "-C", root, "list", "-buildvcs=false", "-deps", "-export", "-f", "{{.BuildID}}", "-overlay", list, pkg)
	return list, fmt.Sprintf("%x", sha256.Sum256(out)), err
}

// run returns what a command prints.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}

// play builds the program into file lab with the list of prepare and has it simulate the draws.
func play(ctx context.Context, list, lab string) (out []outcome, err error) {
	if _, err := run(ctx, "go", "build", "-buildvcs=false", "-overlay", list, "-o", lab, program); err != nil {
		return nil, err
	}
	text, err := run(ctx, lab, "simulate", "--family", fmt.Sprint(*draws), "--seed", fmt.Sprint(*seed), "--policy", *strategy, "--json")
	if err != nil {
		return nil, err
	}
	var family struct {
		Draws []struct {
			Draw struct{ Draw, Nodes int }
			Runs []struct {
				TTFT struct{ P99, Mean float64 } `json:"ttft_ms"`
				Hits float64                     `json:"hit_rate"`
			}
		}
	}
	if err := json.Unmarshal(text, &family); err != nil {
		return nil, err
	}
	for _, d := range family.Draws {
		r := d.Runs[0] // that of the drawn fleet
		if r.TTFT.P99 <= 0 || r.TTFT.Mean <= 0 {
			return nil, fmt.Errorf("draw %d: a first-token time of %v has no ratio to others", d.Draw.Draw, r.TTFT)
		}
		out = append(out, outcome{d.Draw.Nodes, r.TTFT.P99, r.TTFT.Mean, r.Hits})
	}
	return out, nil
}

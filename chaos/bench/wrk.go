//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

//go:embed post.lua
var postScript []byte

type corpus struct {
	dir, script string
	n           int
}

func writeCorpus(dir string, bodies [][]byte, size int) (corpus, error) {
	c := corpus{dir: filepath.Join(dir, fmt.Sprintf("bodies-%d", size)), script: filepath.Join(dir, "post.lua"), n: len(bodies)}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return c, err
	}
	for i, b := range bodies {
		if err := os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("%d.json", i)), b, 0o644); err != nil {
			return c, err
		}
	}
	return c, os.WriteFile(c.script, postScript, 0o644)
}

func runWrk(ctx context.Context, c corpus, addr string, d time.Duration) (sample, error) {
	cmd := exec.CommandContext(ctx, "wrk", "-t2", "-c", strconv.Itoa(connections), "-d", fmt.Sprintf("%ds", int(d.Seconds())), "-s", c.script,
		"http://"+addr+"/v1/chat/completions", "--", c.dir, strconv.Itoa(c.n))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("wrk: %w: %s", err, stderr.Bytes())
	}
	var r struct {
		Requests int     `json:"requests"`
		Duration float64 `json:"duration_us"`
		P50      float64 `json:"p50_us"`
		P99      float64 `json:"p99_us"`
		Errors   int     `json:"errors"`
	}
	i := bytes.LastIndexByte(bytes.TrimRight(out, "\n"), '\n') + 1
	if err := json.Unmarshal(out[i:], &r); err != nil {
		return sample{}, fmt.Errorf("wrk printed no summary: %w: %s", err, out)
	}
	return sample{units: r.Requests, errors: r.Errors,
		values: map[string]float64{rate: float64(r.Requests) / (r.Duration / 1e6), p50: r.P50 / 1e3, p99: r.P99 / 1e3}}, nil
}

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// postScript makes wrk cycle through the body files of a directory, each thread from its own
// offset, and print its summary as JSON. init formats the requests once, so that the client's cost
// is independent of the bodies.
const postScript = `
local requests, at, thread_count = {}, 0, 0
function setup(thread)
  thread:set("offset", thread_count)
  thread_count = thread_count + 1
end
function init(args)
  local dir, n = args[1], tonumber(args[2])
  for i = 0, n - 1 do
    local f = assert(io.open(string.format("%s/%d.json", dir, i), "rb"))
    local body = f:read("*a")
    f:close()
    requests[i] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, body)
  end
  count = n
  at = math.floor(offset * n / 2)
end
function request()
  at = (at + 1) % count
  return requests[at]
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"errors":%d}\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
`

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
	return c, os.WriteFile(c.script, []byte(postScript), 0o644)
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

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
  io.write(string.format('{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    summary.errors.connect, summary.errors.read, summary.errors.write, summary.errors.status, summary.errors.timeout))
end
`

type wrkResult struct {
	Requests   int64 `json:"requests"`
	DurationUS int64 `json:"duration_us"`
	P50US      int64 `json:"p50_us"`
	P99US      int64 `json:"p99_us"`
	Connect    int64 `json:"connect"`
	Read       int64 `json:"read"`
	Write      int64 `json:"write"`
	Status     int64 `json:"status"`
	Timeout    int64 `json:"timeout"`
}

func (r wrkResult) errors() int64 { return r.Connect + r.Read + r.Write + r.Status + r.Timeout }

type corpus struct {
	dir, script string
	n, size     int
}

func writeCorpus(dir string, bodies [][]byte, size int) (corpus, error) {
	c := corpus{dir: filepath.Join(dir, fmt.Sprintf("bodies-%d", size)), n: len(bodies), size: size}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return c, err
	}
	for i, b := range bodies {
		if err := os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("%d.json", i)), b, 0o644); err != nil {
			return c, err
		}
	}
	c.script = filepath.Join(dir, "post.lua")
	return c, os.WriteFile(c.script, []byte(postScript), 0o644)
}

func wrkCommand(c corpus, addr string, conns int, d time.Duration) []string {
	return []string{"wrk", "-t2", "-c", strconv.Itoa(conns), "-d", fmt.Sprintf("%ds", int(d.Seconds())), "-s", c.script,
		"http://" + addr + "/v1/chat/completions", "--", c.dir, strconv.Itoa(c.n)}
}

func runWrk(ctx context.Context, c corpus, addr string, conns int, d time.Duration) (wrkResult, error) {
	var r wrkResult
	args := wrkCommand(c, addr, conns, d)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("wrk: %w: %s", err, stderr.Bytes())
	}
	i := bytes.LastIndexByte(bytes.TrimRight(out, "\n"), '\n') + 1
	if err := json.Unmarshal(out[i:], &r); err != nil {
		return r, fmt.Errorf("wrk printed no summary: %w: %s", err, out)
	}
	return r, nil
}

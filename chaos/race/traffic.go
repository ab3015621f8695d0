//go:build linux

package main

import (
	"fmt"
	"slices"
	"time"

	"grapevine.example/chaos/workload"
)

// The engines together compute 216,000 prompt tokens per second and hold 600,000 tokens. An event
// carries four tokens: with a step of 4 ms, a stream has the events per second of a real engine.
const engineCount = 6

var engineFlags = []string{
	"--kv-tokens", "100000", "--prefill-rate", "36000", "--decode-step", "4ms", "--tokens-per-chunk", "4",
}

// traffic has the three kinds. Without caches, chat would take 0.7 of the engines' compute, RAG 0.8
// and agents 1.6.
var traffic = []*workload.Sessions{
	// The preset of this name with half its output, so that conversations fit the engines' memory.
	{
		Label: "chat", Rate: 18, Continue: 0.6, MaxTurns: 5, Think: 2 * time.Second, SharedTokens: 1024, Pool: 4, Suffix: 256, BlockTokens: 16,
		Prompt: workload.CDF{{V: 256, P: 0}, {V: 1500, P: .35}, {V: 4000, P: .75}, {V: 9000, P: .99}, {V: 16384, P: 1}},
		Output: workload.CDF{{V: 16, P: 0}, {V: 150, P: .45}, {V: 400, P: .80}, {V: 900, P: .99}, {V: 1536, P: 1}},
	},
	// Short questions about one of 64 documents. The documents fit into all caches together, but not
	// into one.
	{
		Label: "rag", Rate: 30, Continue: 0.5, MaxTurns: 3, Think: 2 * time.Second, SharedTokens: 3072, Pool: 64, Suffix: 64, BlockTokens: 16,
		Prompt: workload.CDF{{V: 3104, P: 0}, {V: 3200, P: .70}, {V: 3584, P: 1}},
		Output: workload.CDF{{V: 16, P: 0}, {V: 100, P: .60}, {V: 300, P: 1}},
	},
	// The preset agentic with three quarters of its prompt, half its output and longer conversations:
	// 200 of them run at a time, more than the engines can hold.
	{
		Label: "agents", Rate: 10, Continue: 0.85, MaxTurns: 10, Think: 3 * time.Second, SharedTokens: 4096, Pool: 16, Suffix: 384, BlockTokens: 16,
		Prompt: workload.CDF{{V: 192, P: 0}, {V: 4900, P: .30}, {V: 6750, P: .70}, {V: 12000, P: .99}, {V: 24576, P: 1}},
		Output: workload.CDF{{V: 16, P: 0}, {V: 200, P: .40}, {V: 450, P: .75}, {V: 1000, P: .99}, {V: 2048, P: 1}},
	},
}

// trafficOf returns the named kinds with a duration.
func trafficOf(kinds []string, d time.Duration) (out []*workload.Sessions, err error) {
	for _, k := range kinds {
		i := slices.IndexFunc(traffic, func(s *workload.Sessions) bool { return s.Label == k })
		if i < 0 {
			return nil, fmt.Errorf("no traffic is called %q, want chat, rag or agents", k)
		}
		t := *traffic[i]
		t.Duration = d
		out = append(out, &t)
	}
	return out, nil
}

package demo

import (
	"fmt"
	"time"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/workload"
)

// pace is how much faster than in reality engines run and people think: two minutes stand for ten.
const pace = 5

// EngineConfig is about an 8B model in 16 bits on one 32 GB card (107,000 tokens of KV at 128 KiB
// each beside the weights, 9,000 prompt tokens per second, 15 ms per decode step), at five times
// the speed. Memory and prompts are not scaled.
func EngineConfig() engine.Config {
	return engine.Config{
		KVTokens: 100_000, BlockTokens: 16, MaxRunning: 64,
		PrefillRate: 9_000 * pace, ChunkTokens: 512, DecodeStep: 15 * time.Millisecond / pace,
	}
}

// Workload is conversations of up to eight turns, 4.2 on average, each with one of eight system
// prompts of 1,024 tokens. The mean think time is 5 s of real time, so that a conversation's cache
// must survive about as many tokens as with longer pauses on a larger card. The rate loads engines
// that compute three quarters of all prompt tokens to about 75 %.
func Workload(engines int, d time.Duration) *workload.Sessions {
	return &workload.Sessions{
		Label: "demo", Rate: 2.75 * float64(engines), Backends: engines,
		Continue: 0.8, MaxTurns: 8, Think: 5 * time.Second / pace,
		SharedTokens: 1024, Pool: 8, Suffix: 256, BlockTokens: 64,
		Prompt:   workload.CDF{{V: 1500, P: 0}, {V: 3000, P: 0.3}, {V: 6000, P: 0.9}, {V: 10000, P: 1}},
		Output:   workload.CDF{{V: 16, P: 0}, {V: 80, P: 0.6}, {V: 200, P: 1}},
		Duration: d, Warmup: warmup(d),
	}
}

func warmup(d time.Duration) time.Duration { return d / 5 }

// Describe summarises the setting of the measurements in three lines.
func Describe(nodes, engines int, d time.Duration) string {
	e, w := EngineConfig(), Workload(engines, d)
	return fmt.Sprintf("%d emulated engines, each with %d tokens of KV cache, %.0f prompt tokens/s, %v a decode step: about an 8B model on a 32 GB card, %d times as fast\n"+
		"%.0f conversations/s of up to %d turns, prompts from %.0f to %.0f tokens, %d of them one of %d shared system prompts, %v of thought between turns; %v each, the first %v not counted\n"+
		"%d routers behind a layer-4 balancer, every turn over a new connection to a random one; one router is killed after %v and started again after %v",
		engines, e.KVTokens, e.PrefillRate, e.DecodeStep, pace,
		w.Rate, w.MaxTurns, w.Prompt[0].V, w.Prompt[len(w.Prompt)-1].V, w.SharedTokens, w.Pool, w.Think, d, w.Warmup,
		nodes, share(d, killAt), share(d, restartAt))
}

func share(d time.Duration, part float64) time.Duration {
	return time.Duration(part * float64(d)).Round(time.Millisecond)
}

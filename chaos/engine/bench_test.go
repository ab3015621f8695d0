package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func BenchmarkDecode(b *testing.B) {
	for _, watch := range []bool{false, true} {
		b.Run(fmt.Sprintf("watch=%v", watch), func(b *testing.B) {
			m := newModel(b, Config{})
			b.ReportAllocs()
			jobs := make([]Job, 64)
			for range b.N {
				now := m.now
				for i := range jobs {
					j := &jobs[i]
					j.PromptTokens, j.OutputTokens, j.Watch = 100, 1000, watch
					m.Submit(j, now)
				}
				for {
					at, ok := m.Next()
					if !ok {
						break
					}
					m.Advance(at, nil)
				}
			}
			b.ReportMetric(float64(m.Stats().Steps)/b.Elapsed().Seconds(), "steps/s")
			b.ReportMetric(float64(m.Stats().Finished)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

func BenchmarkJobs(b *testing.B) {
	const tokens, count = 64, 10_000
	for _, shape := range []struct {
		name           string
		blocks, output int
		gap            time.Duration
		kv             int
	}{
		{"prompt=1k/output=50", 8, 50, 70 * time.Millisecond, 300_000},
		{"prompt=8k/output=300", 32, 300, 600 * time.Millisecond, 1_000_000},
		{"prompt=64k/output=300", 256, 300, 4 * time.Second, 8_000_000},
	} {
		b.Run(shape.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			sessions := make([][]uint64, 500)
			trace, at := make([]Job, count), make([]time.Duration, count)
			var now time.Duration
			for i := range trace {
				s := &sessions[rng.IntN(len(sessions))]
				if len(*s) > 8*shape.blocks {
					*s = nil
				}
				output := 1 + rng.IntN(2*shape.output)
				prompt := len(*s) + 1 + rng.IntN(shape.blocks)
				for len(*s) < prompt+output/tokens {
					*s = append(*s, rng.Uint64())
				}
				trace[i] = Job{Keys: (*s)[:prompt], OutKeys: (*s)[prompt:], KeyTokens: tokens, PromptTokens: prompt*tokens + 13, OutputTokens: output}
				now += time.Duration(rng.ExpFloat64() * float64(shape.gap))
				at[i] = now
			}
			b.ReportAllocs()
			var s Stats
			for b.Loop() {
				m := newModel(b, Config{KVTokens: shape.kv})
				for i := range trace {
					m.Advance(at[i], nil)
					m.Submit(&trace[i], at[i])
				}
				for next, ok := m.Next(); ok; next, ok = m.Next() {
					m.Advance(next, nil)
				}
				s = m.Stats()
			}
			if s.Finished != count {
				b.Fatalf("%d jobs finished", s.Finished)
			}
			seconds := b.Elapsed().Seconds() / float64(b.N)
			b.ReportMetric(count/seconds, "jobs/s")
			b.ReportMetric(float64(s.Steps)/seconds, "steps/s")
			b.ReportMetric(float64(s.CachedTokens)/float64(s.PromptTokens), "hit-rate")
			b.ReportMetric(float64(s.EvictedTokens)/float64(s.PromptTokens), "evicted")
			b.ReportMetric(s.Busy.Seconds()/lasted(now, trace), "busy")
		})
	}
}

func lasted(now time.Duration, trace []Job) float64 {
	for i := range trace {
		now = max(now, trace[i].Finished)
	}
	return now.Seconds()
}

func BenchmarkParse(b *testing.B) {
	s, err := NewServer(ServerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, size := range []int{1 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("body=%dKiB", size>>10), func(b *testing.B) {
			turns := make([]string, 0, 32)
			for left := size - 500; left > 0; left -= 4096 {
				turns = append(turns, string(appendReply(nil, uint64(left), min(left, 4096)/TokenBytes)))
			}
			body := []byte(strings.Replace(chat(`,"max_tokens":16`, turns...), `"model":"m",`, "", 1))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				c, bad := s.parse(endpointChat, body)
				if bad != nil {
					b.Fatal(bad)
				}
				c.flight()
			}
		})
	}
}

func BenchmarkServer(b *testing.B) {
	l := startServer(b, ServerConfig{Config: Config{PrefillRate: 1e9, DecodeStep: time.Nanosecond, MaxRunning: 1024}, Models: []string{"m"}})
	body := chat(`,"max_tokens":16`, strings.Repeat("word ", 180))
	b.SetParallelism(16)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if status, answer := l.post("/v1/chat/completions", body); status != 200 {
				b.Errorf("%d %s", status, answer)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

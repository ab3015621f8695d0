package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func newModel(t testing.TB, cfg Config) *Model {
	t.Helper()
	m, err := NewModel(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t interface{ Fatal(...any) }, m *Model, emit func(Event)) {
	for range 100_000 {
		at, ok := m.Next()
		if !ok {
			return
		}
		m.Advance(at, emit)
		if err := m.check(); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the model does not come to rest")
}

func prompt(tokens, tail, output int, contents ...uint64) *Job {
	return &Job{Keys: chain(contents), KeyTokens: tokens, PromptTokens: len(contents)*tokens + tail, OutputTokens: output}
}

func TestModelTimesOneJob(t *testing.T) {
	m := newModel(t, Config{PrefillRate: 1000, ChunkTokens: 100, DecodeStep: 10 * ms})
	j := prompt(16, 2, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
	m.Submit(j, 5*ms)
	var events []string
	run(t, m, func(e Event) { events = append(events, fmt.Sprint(e.Kind, e.At)) })
	if j.Submitted != 5*ms || j.Admitted != 5*ms || j.FirstToken != 215*ms || j.Finished != 255*ms || j.Cached != 0 {
		t.Fatalf("%+v", j)
	}
	if got, want := fmt.Sprint(events), "[1 5ms 2 215ms 5 255ms]"; got != want {
		t.Fatalf("events %s, want %s", got, want)
	}
	if s := m.Stats(); s.Busy != 250*ms || s.PrefillTokens != 210 || s.OutputTokens != 5 || s.Steps != 7 {
		t.Fatalf("%+v", s)
	}
}

func TestModelKnowsWhatIsComing(t *testing.T) {
	m := newModel(t, Config{PrefillRate: 1000, ChunkTokens: 100, MaxRunning: 1})
	first, second := prompt(16, 2, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), prompt(16, 2, 5, 1, 2, 3, 4, 20, 21)
	m.Submit(first, 0)
	m.Submit(second, 0)
	m.Advance(0, nil)
	// The first step computes 100 of the first prompt's 162 tokens; the second waits.
	if got := m.Prefilling(); got != 62 {
		t.Errorf("%d tokens to prefill, want 62", got)
	}
	if now, coming := m.Cached(first.Keys, 16), m.Coming(first.Keys, 16); now != 96 || coming != 160 {
		t.Errorf("%d tokens of the first are cached and %d will be", now, coming)
	}
	if now, coming := m.Cached(second.Keys, 16), m.Coming(second.Keys, 16); now != 64 || coming != 96 {
		t.Errorf("%d tokens of the second are cached and %d will be", now, coming)
	}
	third := prompt(16, 0, 1, 1, 2, 30)
	if coming := m.Coming(third.Keys, 16); coming != 32 {
		t.Errorf("%d tokens of a third will be cached, want 32", coming)
	}
	run(t, m, nil)
	if m.Prefilling() != 0 || m.Cached(second.Keys, 16) != 96 || m.Coming(second.Keys, 0) != 0 {
		t.Errorf("%d tokens to prefill after the end", m.Prefilling())
	}
}

func TestModelReplyIsCached(t *testing.T) {
	m := newModel(t, Config{})
	all := chain([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	first := &Job{Keys: all[:4], OutKeys: all[4:7], KeyTokens: 16, PromptTokens: 70, OutputTokens: 7*16 - 70}
	m.Submit(first, 0)
	run(t, m, nil)
	if got := m.Cached(all, 16); got != 6*16 {
		t.Fatalf("cached %d, want 96: the last token of the seventh block has no KV", got)
	}
	next := &Job{Keys: all, KeyTokens: 16, PromptTokens: 160, OutputTokens: 1}
	if got := m.CachedFor(next); got != 96 {
		t.Fatalf("truth %d, want 96", got)
	}
	m.Submit(next, time.Minute)
	run(t, m, nil)
	if next.Cached != 96 {
		t.Fatalf("cached %d, want 96", next.Cached)
	}
	again := &Job{Keys: all, KeyTokens: 16, PromptTokens: 160, OutputTokens: 1}
	m.Submit(again, 2*time.Minute)
	run(t, m, nil)
	if again.Cached != 144 {
		t.Fatalf("cached %d, want 144: the last block is computed for its logits", again.Cached)
	}
}

func TestModelSeesRunningReply(t *testing.T) {
	m := newModel(t, Config{PrefillRate: 1e6, DecodeStep: 10 * ms})
	all := chain([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	j := &Job{Keys: all[:2], OutKeys: all[2:], KeyTokens: 16, PromptTokens: 32, OutputTokens: 128}
	m.Submit(j, 0)
	m.Advance(20*10*ms, nil)
	// 19 steps are over and the 20th runs: 52 tokens, three full blocks.
	if got := m.Cached(all, 16); got != 48 {
		t.Fatalf("cached %d, want 48", got)
	}
}

func TestModelIdenticalPrompts(t *testing.T) {
	m := newModel(t, Config{ChunkTokens: 64})
	a, b := prompt(16, 5, 3, 1, 2, 3, 4, 5, 6, 7, 8), prompt(16, 5, 3, 1, 2, 3, 4, 5, 6, 7, 8)
	m.Submit(a, 0)
	m.Submit(b, 0)
	run(t, m, nil)
	if a.Cached != 0 || b.Cached != 128 {
		t.Fatalf("cached %d and %d, want 0 and 128", a.Cached, b.Cached)
	}
}

func TestModelOneCopyOfEqualReplies(t *testing.T) {
	m := newModel(t, Config{})
	all := chain([]uint64{1, 2, 3, 4, 5, 6, 7, 8})
	for range 2 {
		m.Submit(&Job{Keys: all[:2], OutKeys: all[2:], KeyTokens: 16, PromptTokens: 33, OutputTokens: 96}, 0)
	}
	run(t, m, nil)
	if s := m.Stats(); s.KVUsed != 128 || s.KVShared != 128 {
		t.Fatalf("%+v", s)
	}
}

func TestModelRefuses(t *testing.T) {
	m := newModel(t, Config{KVTokens: 160})
	var refused []*Job
	big, none, fits := prompt(16, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), prompt(16, 0, 1), prompt(16, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, j := range []*Job{big, none, fits} {
		m.Submit(j, 0)
	}
	run(t, m, func(e Event) {
		if e.Kind == Refused {
			refused = append(refused, e.Job)
		}
	})
	if len(refused) != 2 || refused[0] != big || refused[1] != none || fits.Finished == 0 {
		t.Fatalf("refused %v", refused)
	}
}

func TestModelPreempts(t *testing.T) {
	m := newModel(t, Config{KVTokens: 256, ChunkTokens: 64, PrefillRate: 1000, DecodeStep: 10 * ms})
	a := &Job{PromptTokens: 60, OutputTokens: 100, Watch: true}
	b := &Job{PromptTokens: 60, OutputTokens: 100, Watch: true}
	m.Submit(a, 0)
	m.Submit(b, 0)
	tokens, preempted := map[*Job]int{}, map[*Job]int{}
	run(t, m, func(e Event) {
		switch e.Kind {
		case FirstToken, Tokens:
			tokens[e.Job] += e.Tokens
		case Preempted:
			preempted[e.Job]++
		}
	})
	if preempted[a] != 0 || preempted[b] == 0 || tokens[a] != 100 || tokens[b] != 100 || a.Finished >= b.Finished {
		t.Fatalf("preempted %d and %d, tokens %d and %d", preempted[a], preempted[b], tokens[a], tokens[b])
	}
	if s := m.Stats(); s.OutputTokens != 200 || s.PromptTokens != 120 || s.PrefillTokens <= 120 {
		t.Fatalf("%+v", s)
	}
}

func TestModelSlowAndReset(t *testing.T) {
	m := newModel(t, Config{PrefillRate: 1000, DecodeStep: 10 * ms})
	j := prompt(16, 0, 11, 1)
	m.Submit(j, 0)
	m.Advance(21*ms, nil) // 16 ms of prefill, the first decode step until 26 ms
	m.Slow(3, 21*ms)
	run(t, m, nil)
	if j.Finished != (26+9*30)*ms {
		t.Fatalf("finished at %v", j.Finished)
	}
	at := j.Finished
	running, waiting, refused := prompt(16, 0, 11, 1), prompt(16, 0, 1, 1), prompt(16, 0, 1)
	m.Submit(running, at)
	m.Advance(at+ms, nil)
	m.Submit(waiting, at+ms)
	m.Submit(refused, at+ms)
	if lost := m.Reset(at + 2*ms); fmt.Sprint(lost) != fmt.Sprint([]*Job{running, waiting, refused}) {
		t.Fatalf("lost %v", lost)
	}
	if err := m.check(); err != nil || m.Cached(j.Keys, 16) != 0 || m.Stats().KVUsed != 0 {
		t.Fatalf("%v, %+v", err, m.Stats())
	}
}

func TestModelConfigErrors(t *testing.T) {
	for _, cfg := range []Config{{KVTokens: 8}, {BlockTokens: -1}, {BlockTokens: MaxBlockTokens + 1}, {MaxRunning: -1},
		{PrefillRate: -1}, {ChunkTokens: -1}, {DecodeStep: -1}, {DecodeGrowth: -1}} {
		if _, err := NewModel(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func drawJob(t *rapid.T, tokens int) *Job {
	all := drawKeys(t, "keys", 12)
	n := rapid.IntRange(0, len(all)).Draw(t, "prompt keys")
	j := &Job{Keys: all[:n], OutKeys: all[n:], KeyTokens: tokens, Watch: rapid.IntRange(0, 9).Draw(t, "watch") == 0}
	j.PromptTokens = max(n*tokens+rapid.IntRange(0, tokens-1).Draw(t, "tail"), 1)
	j.OutputTokens = rapid.IntRange(0, 60).Draw(t, "output")
	return j
}

func drawConfig(t *rapid.T) Config {
	return Config{
		KVTokens:     rapid.SampledFrom([]int{96, 160, 256, 512, 2048}).Draw(t, "kv"),
		BlockTokens:  rapid.SampledFrom([]int{1, 4, 8, 16, 24}).Draw(t, "block"),
		MaxRunning:   rapid.IntRange(1, 6).Draw(t, "running"),
		PrefillRate:  1000,
		ChunkTokens:  rapid.SampledFrom([]int{1, 7, 32, 512}).Draw(t, "chunk"),
		DecodeStep:   10 * ms,
		DecodeGrowth: float64(rapid.IntRange(0, 2).Draw(t, "growth")) / 2,
	}
}

func TestModelInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := NewModel(drawConfig(t))
		if err != nil {
			t.Fatal(err)
		}
		var now time.Duration
		live, tokens := map[*Job]bool{}, map[*Job]int{}
		var order []*Job
		ended, submitted, cancelled := 0, 0, 0
		emit := func(e Event) {
			if !live[e.Job] {
				t.Fatalf("event %d for a job that is not in the model", e.Kind)
			}
			switch e.Kind {
			case FirstToken, Tokens:
				tokens[e.Job] += e.Tokens
			case Finished:
				if want := e.Job.OutputTokens; e.Job.Watch && tokens[e.Job] != want {
					t.Fatalf("%d tokens of %d", tokens[e.Job], want)
				}
				fallthrough
			case Refused:
				delete(live, e.Job)
				ended++
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				j := drawJob(t, 8)
				m.Submit(j, now)
				live[j], order = true, append(order, j)
				submitted++
			},
			"advance": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * ms
				m.Advance(now, emit)
			},
			"next": func(t *rapid.T) {
				if at, ok := m.Next(); ok {
					now = max(now, at)
					m.Advance(now, emit)
				}
			},
			"cancel": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("none")
				}
				j := rapid.SampledFrom(order).Draw(t, "job")
				m.Advance(now, emit)
				if m.Cancel(j, now) != live[j] {
					t.Fatal("cancel disagrees about a job being in the model")
				}
				if live[j] {
					cancelled++
				}
				delete(live, j)
			},
			"truth": func(t *rapid.T) { m.Cached(drawKeys(t, "keys", 12), 8) },
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "seldom") == 0 {
					m.Clear(now)
				}
			},
			"": func(t *rapid.T) {
				if err := m.check(); err != nil {
					t.Fatal(err)
				}
			},
		})
		run(t, m, emit)
		s := m.Stats()
		if len(live) != 0 || ended+cancelled != submitted || s.Running+s.Waiting != 0 {
			t.Fatalf("%d jobs left, %d ended, %d cancelled of %d", len(live), ended, cancelled, submitted)
		}
		if s.KVUsed != s.KVShared || s.KVUsed != s.KVEvictable {
			t.Fatalf("idle: %+v", s)
		}
	})
}

func TestModelDoesNotSeeTheObserver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		type arrival struct {
			at  time.Duration
			job Job
		}
		var arrivals []arrival
		var at time.Duration
		for range rapid.IntRange(1, 12).Draw(t, "jobs") {
			at += time.Duration(rapid.IntRange(0, 200).Draw(t, "gap")) * ms
			a := arrival{at: at, job: *drawJob(t, 8)}
			a.job.Watch = false
			arrivals = append(arrivals, a)
		}
		play := func(watch bool, look time.Duration) (log []string) {
			m, err := NewModel(cfg)
			if err != nil {
				t.Fatal(err)
			}
			emit := func(e Event) {
				if e.Kind != Tokens && e.Kind != Refused {
					log = append(log, fmt.Sprint(e.Kind, e.Job.User, e.At, e.Tokens, e.Job.Cached))
				}
			}
			var now time.Duration
			to := func(until time.Duration) {
				for ; look > 0 && now < until; now += look {
					m.Advance(now, emit)
					m.Stats()
					m.Cached(arrivals[0].job.Keys, 8)
				}
				now = until
			}
			for i := range arrivals {
				j := arrivals[i].job
				j.User, j.Watch = i, watch
				to(arrivals[i].at)
				if look > 0 && i > 0 && arrivals[i].at > arrivals[i-1].at {
					m.Advance(arrivals[i].at-1, emit)
				}
				m.Submit(&j, arrivals[i].at)
			}
			for {
				next, ok := m.Next()
				if !ok {
					break
				}
				to(next)
				m.Advance(next, emit)
			}
			s := m.Stats()
			return append(log, fmt.Sprintf("%+v", s))
		}
		plain := fmt.Sprint(play(false, 0))
		if got := fmt.Sprint(play(true, 0)); got != plain {
			t.Fatalf("watched:\n%s\nunwatched:\n%s", got, plain)
		}
		if got := fmt.Sprint(play(false, 3*ms+1)); got != plain {
			t.Fatalf("looked at:\n%s\nleft alone:\n%s", got, plain)
		}
	})
}

func TestModelHitsAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const tokens = 8
		blocks := rapid.IntRange(13, 40).Draw(t, "blocks")
		m, err := NewModel(Config{KVTokens: blocks * tokens, BlockTokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		naive := naiveCache{blocks: map[uint64]*naiveBlock{}}
		for range rapid.IntRange(1, 40).Draw(t, "jobs") {
			keys := drawKeys(t, "keys", 12)
			if len(keys) == 0 {
				continue
			}
			j := &Job{Keys: keys, KeyTokens: tokens, PromptTokens: len(keys) * tokens, OutputTokens: 1}
			hit := naive.match(keys)
			naive.hold(keys, 0, hit)
			if over := len(naive.blocks) + len(keys) - hit - blocks; over > 0 {
				naive.evict(over)
			}
			naive.hold(keys, hit, len(keys))
			naive.release(keys)
			m.Submit(j, 0)
			run(t, m, nil)
			if want := min(hit, len(keys)-1) * tokens; j.Cached != want {
				t.Fatalf("cached %d tokens, want %d", j.Cached, want)
			}
		}
	})
}

func TestModelConservesWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := NewModel(Config{KVTokens: 1000, PrefillRate: 8000, ChunkTokens: rapid.IntRange(1, 100).Draw(t, "chunk")})
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 20).Draw(t, "jobs") {
			j := drawJob(t, 8)
			j.OutputTokens = rapid.IntRange(0, 1).Draw(t, "one")
			m.Submit(j, 0)
		}
		run(t, m, nil)
		s := m.Stats()
		if s.PrefillTokens != s.PromptTokens-s.CachedTokens {
			t.Fatalf("computed %d of %d with %d cached", s.PrefillTokens, s.PromptTokens, s.CachedTokens)
		}
		if d := s.Busy - s.PrefillBusy; d < -time.Duration(s.Steps) || d > time.Duration(s.Steps) {
			t.Fatalf("busy %v for %v of work", s.Busy, s.PrefillBusy)
		}
	})
}

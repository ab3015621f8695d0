package workload

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

func play(t *testing.T, w Workload, opt Options, service time.Duration) []*Request {
	t.Helper()
	src, err := w.Source(opt)
	if err != nil {
		t.Fatal(err)
	}
	type flight struct {
		r  *Request
		at time.Duration
	}
	var open []flight
	var all []*Request
	for {
		at, ok := src.Peek()
		if len(open) > 0 && (!ok || open[0].at <= at) {
			src.Done(open[0].r, open[0].at)
			open = open[1:]
			continue
		}
		if !ok {
			return all
		}
		r := src.Next()
		if r.At != at || len(all) > 0 && r.At < all[len(all)-1].At {
			t.Fatalf("request %d out of order", r.Index)
		}
		all = append(all, r)
		open = append(open, flight{r, r.At + service})
	}
}

func preset(t *testing.T, name string) *Sessions {
	t.Helper()
	s, err := Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCDFSamplesFollowTheTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range PresetNames() {
		s := preset(t, name)
		for _, c := range []CDF{s.Prompt, s.Output} {
			const n = 200_000
			var sum float64
			below := make([]int, len(c))
			for range n {
				v := c.At(rng.Float64())
				sum += v
				for i, p := range c {
					if v <= p.V {
						below[i]++
					}
				}
			}
			for i, p := range c {
				if got := float64(below[i]) / n; math.Abs(got-p.P) > 0.005 {
					t.Errorf("%s: %.4f of the values up to %v, want %v", name, got, p.V, p.P)
				}
			}
			if m := c.Mean(); math.Abs(sum/n-m) > 0.01*m {
				t.Errorf("%s: mean %.1f of the samples, %.1f of the table", name, sum/n, m)
			}
		}
	}
	if err := (CDF{{1, 0}, {5, .5}, {5, 1}}).check(); err == nil {
		t.Error("a distribution that stands still was accepted")
	}
	if _, err := Preset("none"); err == nil {
		t.Error("an unknown preset was accepted")
	}
}

func TestSessionsFollowTheirParameters(t *testing.T) {
	for _, name := range PresetNames() {
		s := preset(t, name)
		rs := play(t, s, Options{Duration: 60 * time.Second, Backends: s.Backends / 2, Seed: 3}, 2*time.Second)
		firsts := 0
		var prompt float64
		last := make(map[int]*Request)
		for _, r := range rs {
			if r.PromptTokens < 1 || r.OutputTokens < 16 || len(r.Keys) != r.PromptTokens/r.KeyTokens {
				t.Fatalf("%s: request %+v", name, r)
			}
			if r.Turn == 1 {
				firsts++
				prompt += float64(r.PromptTokens)
			} else {
				p := last[r.Session]
				if r.Turn != p.Turn+1 || r.PromptTokens != p.PromptTokens+p.OutputTokens+s.Suffix || r.At < p.At+2*time.Second {
					t.Fatalf("%s: turn %d after %d: %d tokens after %d + %d", name, r.Turn, p.Turn, r.PromptTokens, p.PromptTokens, p.OutputTokens)
				}
				// The next prompt has the answer's blocks under the same keys.
				known := append(append([]uint64(nil), p.Keys...), p.OutKeys...)
				if !reflect.DeepEqual(known, append([]uint64(nil), r.Keys[:len(known)]...)) {
					t.Fatalf("%s: turn %d does not continue turn %d", name, r.Turn, p.Turn)
				}
			}
			if r.Turn > s.MaxTurns {
				t.Fatalf("%s: turn %d", name, r.Turn)
			}
			last[r.Session] = r
		}
		want := s.Rate / 2 * 60
		if d := math.Abs(float64(firsts) - want); d > 5*math.Sqrt(want) {
			t.Errorf("%s: %d sessions, want about %.0f", name, firsts, want)
		}
		if m := s.Prompt.Mean(); math.Abs(prompt/float64(firsts)-m) > 0.04*m {
			t.Errorf("%s: first prompts of %.0f tokens, want about %.0f", name, prompt/float64(firsts), m)
		}
	}
}

func TestEqualKeysEqualPrefixes(t *testing.T) {
	for _, name := range PresetNames() {
		before := make(map[uint64]uint64)
		shared := 0
		for _, r := range play(t, preset(t, name), Options{Duration: 20 * time.Second, Backends: 20, Seed: 9}, time.Second) {
			prev := uint64(0)
			for i, k := range r.Keys {
				if p, ok := before[k]; ok && p != prev {
					t.Fatalf("%s: key %x follows both %x and %x", name, k, p, prev)
				} else if ok && r.Turn == 1 {
					shared++
				}
				_ = i
				before[k] = prev
				prev = k
			}
		}
		if shared == 0 {
			t.Errorf("%s: no first turn shares a block with another session", name)
		}
	}
}

func TestSameSeedSameSessions(t *testing.T) {
	s := preset(t, "chat")
	opt := Options{Duration: 10 * time.Second, Backends: 12, Seed: 5}
	a, b := play(t, s, opt, time.Second), play(t, s, opt, time.Second)
	if !reflect.DeepEqual(a, b) {
		t.Error("equal seeds, different runs")
	}
	// A slower fleet delays turns, but their content stays the same.
	slow := make(map[[2]int]*Request)
	for _, r := range play(t, s, opt, 3*time.Second) {
		slow[[2]int{r.Session, r.Turn}] = r
	}
	common := 0
	for _, r := range a {
		if o := slow[[2]int{r.Session, r.Turn}]; o != nil {
			common++
			if o.PromptTokens != r.PromptTokens || !reflect.DeepEqual(o.Keys, r.Keys) || r.Turn == 1 && o.At != r.At {
				t.Fatalf("session %d turn %d depends on the fleet", r.Session, r.Turn)
			}
		}
	}
	if common < len(a)/2 {
		t.Errorf("only %d of %d requests in common", common, len(a))
	}
	opt.Seed = 6
	if c := play(t, s, opt, time.Second); reflect.DeepEqual(a, c) {
		t.Error("two seeds gave the same run")
	}
}

func TestRequestsLimitAndDoubleDone(t *testing.T) {
	s := preset(t, "agentic")
	if n := len(play(t, s, Options{Requests: 33}, time.Second)); n != 33 {
		t.Errorf("%d requests, wanted 33", n)
	}
	src, err := s.Source(Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := src.Next()
	src.Done(r, r.At)
	defer func() {
		if recover() == nil {
			t.Error("the second Done went unnoticed")
		}
	}()
	src.Done(r, r.At)
}

func TestSharedShare(t *testing.T) {
	rs := play(t, preset(t, "hot"), Options{Duration: 20 * time.Second, Seed: 3}, time.Second)
	first := map[uint64]int{}
	for _, r := range rs {
		first[r.Keys[0]]++
	}
	most := 0
	for _, n := range first {
		most = max(most, n)
	}
	if share := float64(most) / float64(len(rs)); share < 0.45 || share > 0.55 {
		t.Errorf("%.2f of %d prompts begin alike, want half", share, len(rs))
	}
	if len(first) != len(rs)-most+1 {
		t.Errorf("%d different beginnings of %d prompts, %d of them alike", len(first), len(rs), most)
	}
}

func TestText(t *testing.T) {
	long := Text(nil, 7, 1000)
	if len(long) != 1000*BytesPerToken {
		t.Fatalf("%d bytes for 1000 tokens", len(long))
	}
	if short := Text(nil, 7, 333); !bytes.HasPrefix(long, short) {
		t.Error("fewer tokens are not a prefix of more")
	}
	if other := Text(nil, 8, 1000); bytes.Equal(long[:16], other[:16]) {
		t.Error("two keys begin alike")
	}
	j, err := json.Marshal(string(long))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Count(long, []byte("\n"))
	if lines == 0 || lines > 60 || len(j) != len(long)+2+lines {
		t.Errorf("%d lines, %d bytes as JSON", lines, len(j))
	}
}

func TestSegmentsRenderThePrompt(t *testing.T) {
	for _, r := range play(t, preset(t, "chat"), Options{Duration: 20 * time.Second, Backends: 12}, time.Second) {
		tokens, replies := 0, 0
		for _, s := range r.Segments() {
			tokens += s.Tokens
			if s.ReplyOf > 0 {
				replies++
				if s.Role != Assistant || s.ReplyOf != replies {
					t.Fatalf("reply %d stands in message %+v", replies, s)
				}
			} else if n := len(r.AppendText(nil, s)); n != s.Tokens*BytesPerToken {
				t.Fatalf("%d bytes for %d tokens", n, s.Tokens)
			}
		}
		if tokens != r.PromptTokens || replies != r.Turn-1 {
			t.Fatalf("turn %d of %d tokens: segments of %d tokens, %d replies", r.Turn, r.PromptTokens, tokens, replies)
		}
	}
	rs := drain(t, read(t, "x", idsTrace), Options{})
	var text [3][]byte
	for i, r := range rs {
		for _, s := range r.Segments() {
			text[i] = r.AppendText(text[i], s)
		}
		if len(text[i]) != r.PromptTokens*BytesPerToken {
			t.Errorf("request %d: %d bytes for %d tokens", i, len(text[i]), r.PromptTokens)
		}
	}
	if !bytes.HasPrefix(text[2], text[1]) || bytes.HasPrefix(text[1], text[0]) || !bytes.HasPrefix(text[1], text[0][:1024*BytesPerToken]) {
		t.Error("text does not share exactly what the ids share")
	}
}

func BenchmarkText(b *testing.B) {
	buf := Text(nil, 1, 512)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for i := range b.N {
		buf = Text(buf[:0], uint64(i), 512)
	}
}

// Users are always under way, however long answers take, and each conversation begins once.
func TestSessionsOfUsers(t *testing.T) {
	s := preset(t, "chat")
	s.Rate, s.Users, s.Think = 0, 7, 0
	opt := Options{Seed: 3, Duration: 30 * time.Second}
	for _, service := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
		begun := map[int]bool{}
		under := map[time.Duration]int{}
		for _, r := range play(t, s, opt, service) {
			if r.Turn == 1 && begun[r.Session] {
				t.Fatalf("session %d begins twice", r.Session)
			}
			begun[r.Session] = true
			under[r.At]++
		}
		for at := time.Duration(0); at < opt.Duration; at += service {
			if under[at] != s.Users {
				t.Fatalf("answers take %v: %d requests at %v, want one of each of %d users", service, under[at], at, s.Users)
			}
		}
	}
	s.Users = 0
	if _, err := s.Source(opt); err == nil {
		t.Error("neither rate nor users")
	}
}

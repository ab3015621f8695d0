package workload

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Sessions generates conversations. They start as a Poisson process; after every turn up to
// MaxTurns each continues with probability Continue, an exponential think time after the answer. A
// turn's prompt is the whole conversation plus a suffix. The loop of sessions is open: a slow fleet
// delays later turns of a conversation, but no session start. With Users it is closed.
//
// Each session draws one of Pool prefixes of SharedTokens tokens, with which its prompts begin.
// Prompt counts the prefix; a prompt that is shorter has a part of it and at least one own token.
type Sessions struct {
	Label        string
	Rate         float64 // sessions per second
	Users        int     // 0: sessions come by Rate; else so many are always under way, and the end of each begins the next
	Backends     int     // the number of backends that Rate is meant for
	Continue     float64 // probability in [0, 1) of another turn
	MaxTurns     int
	Think        time.Duration // mean
	SharedTokens int
	Pool         int
	SharedShare  float64       // share of the sessions with a shared prefix; 0: all
	Prompt       CDF           // tokens of the first turn's prompt, shared prefix included
	Output       CDF           // tokens of every turn's answer
	Suffix       int           // tokens that the user adds in each later turn
	BlockTokens  int           // tokens per key
	Duration     time.Duration // of a run, unless its options override it
	Warmup       time.Duration // start of a run that measurements exclude
}

func PresetNames() []string { return []string{"medium", "agentic", "chat", "hot"} }

// Preset returns a built-in workload with the parameters of the nearest comparable project's
// published figures (docs/design.md, section 10). They assume an engine ten times faster than a
// real one.
func Preset(name string) (*Sessions, error) {
	s := &Sessions{Label: name, BlockTokens: 256, Duration: 180 * time.Second, Warmup: 20 * time.Second}
	switch name {
	case "medium":
		s.Rate, s.Backends = 611, 240
		s.Continue, s.MaxTurns, s.Think = 0.5, 2, 3*time.Second
		s.SharedTokens, s.Pool, s.Suffix = 2048, 1, 512
		s.Prompt = CDF{{256, 0}, {5000, .216}, {10000, .530}, {20000, .994}, {24576, 1}}
		s.Output = CDF{{16, 0}, {1000, .351}, {2000, .513}, {5000, .998}, {6144, 1}}
	case "agentic":
		s.Rate, s.Backends = 100, 120
		s.Continue, s.MaxTurns, s.Think = 0.8, 8, 3*time.Second
		s.SharedTokens, s.Pool, s.Suffix = 6144, 16, 384
		s.Prompt = CDF{{256, 0}, {6500, .30}, {9000, .70}, {16000, .99}, {32768, 1}}
		s.Output = CDF{{16, 0}, {400, .40}, {900, .75}, {2000, .99}, {4096, 1}}
	case "chat":
		s.Rate, s.Backends = 200, 120
		s.Continue, s.MaxTurns, s.Think = 0.6, 5, 2*time.Second
		s.SharedTokens, s.Pool, s.Suffix = 1024, 4, 256
		s.Prompt = CDF{{256, 0}, {1500, .35}, {4000, .75}, {9000, .99}, {16384, 1}}
		s.Output = CDF{{16, 0}, {300, .45}, {800, .80}, {1800, .99}, {3072, 1}}
	case "hot":
		s.Rate, s.Backends = 126, 16
		s.MaxTurns = 1
		s.SharedTokens, s.Pool, s.SharedShare, s.Suffix = 8192, 1, 0.5, 256
		s.Prompt = CDF{{8448, 0}, {10000, .60}, {16384, 1}}
		s.Output = CDF{{16, 0}, {300, .45}, {800, .80}, {1800, .99}, {3072, 1}}
	default:
		return nil, fmt.Errorf("%w: no workload is called %q, want one of %s", ErrOptions, name, strings.Join(PresetNames(), ", "))
	}
	return s, nil
}

func (s *Sessions) Name() string { return s.Label }

func (s *Sessions) KeyTokens() int { return s.BlockTokens }

func (s *Sessions) check() error {
	for _, c := range []CDF{s.Prompt, s.Output} {
		if err := c.check(); err != nil {
			return fmt.Errorf("%w: %w", ErrOptions, err)
		}
	}
	if s.Users < 0 || s.Users == 0 && !(s.Rate > 0) || !(s.Continue >= 0 && s.Continue < 1) || s.MaxTurns < 1 || s.Think < 0 ||
		s.SharedTokens < 0 || s.Pool < 1 || s.Suffix < 1 || s.BlockTokens < 1 || s.Duration <= 0 {
		return fmt.Errorf("%w: the session generator %q needs rate or users, max turns, pool, suffix, block and duration above 0, and continue in [0, 1)", ErrOptions, s.Label)
	}
	return nil
}

// Source starts a run. Content and start of sessions depend on the seed alone, so runs under
// different policies see the same conversations.
func (s *Sessions) Source(opt Options) (Source, error) {
	opt, err := opt.checked()
	if err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if opt.Duration == 0 {
		opt.Duration = s.Duration
	}
	rate := s.Rate * opt.Speed
	if opt.Backends > 0 && s.Backends > 0 {
		rate *= float64(opt.Backends) / float64(s.Backends)
	}
	g := &sessionSource{spec: s, opt: opt, rate: rate, live: make(map[int]*session)}
	g.arrivals = rand.New(rand.NewPCG(opt.Seed, mix(opt.Seed, 0xa441)))
	if s.Users == 0 {
		g.arrive()
	}
	for range s.Users {
		g.begin(0)
	}
	return g, nil
}

type session struct {
	id       int
	rng      *rand.Rand
	prefix   int
	shared   int
	turn     int
	prompt   int
	output   int
	keys     []uint64
	segments []Segment
}

// timeline is a heap by time. Entries of one time come in the order of seq.
type timeline[T any] []timed[T]

type timed[T any] struct {
	at   time.Duration
	seq  int
	what T
}

func (h timeline[T]) Len() int      { return len(h) }
func (h timeline[T]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h timeline[T]) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h *timeline[T]) Push(x any) { *h = append(*h, x.(timed[T])) }
func (h *timeline[T]) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = timed[T]{}
	*h = old[:len(old)-1]
	return t
}

type sessionSource struct {
	spec     *Sessions
	opt      Options
	rate     float64
	arrivals *rand.Rand
	clock    time.Duration
	due      timeline[*session]
	live     map[int]*session
	sessions int
	seq      int
	issued   int
}

// arrive draws the next session and puts its first turn in the heap, which thus always holds exactly
// one session that has not begun, until the end.
func (g *sessionSource) arrive() {
	g.clock += time.Duration(g.arrivals.ExpFloat64() / g.rate * float64(time.Second))
	if g.clock < g.opt.Duration {
		g.begin(g.clock)
	}
}

func (g *sessionSource) begin(at time.Duration) {
	id := g.sessions
	g.sessions++
	s := &session{id: id, rng: rand.New(rand.NewPCG(mix(g.opt.Seed, 0x5e55), uint64(id)))}
	s.prefix = s.rng.IntN(g.spec.Pool)
	s.turn = 1
	s.prompt = int(g.spec.Prompt.At(s.rng.Float64()))
	s.shared = min(g.spec.SharedTokens, s.prompt-1)
	if p := g.spec.SharedShare; p > 0 && s.rng.Float64() >= p {
		s.shared = 0
	}
	s.output = int(g.spec.Output.At(s.rng.Float64()))
	if s.shared > 0 {
		s.segments = append(s.segments, Segment{Role: System, Tokens: s.shared, key: g.prefixKey(s.prefix)})
	}
	s.segments = append(s.segments, Segment{Role: User, Tokens: s.prompt - s.shared, key: g.sessionKey(id, 1)})
	g.push(s, at)
}

func (g *sessionSource) push(s *session, at time.Duration) {
	heap.Push(&g.due, timed[*session]{at, g.seq, s})
	g.seq++
}

func (g *sessionSource) prefixKey(pool int) uint64 {
	return mix(mix(0x9ae71, g.opt.Seed), uint64(pool))
}

func (g *sessionSource) sessionKey(id, turn int) uint64 {
	return mix(mix(mix(0x7e87, g.opt.Seed), uint64(id)), uint64(turn))
}

func (g *sessionSource) Peek() (time.Duration, bool) {
	if len(g.due) == 0 || g.opt.Requests > 0 && g.issued >= g.opt.Requests {
		return 0, false
	}
	return g.due[0].at, true
}

func (g *sessionSource) Next() *Request {
	if _, ok := g.Peek(); !ok {
		return nil
	}
	t := heap.Pop(&g.due).(timed[*session])
	s := t.what
	if s.turn == 1 && g.spec.Users == 0 {
		g.arrive()
	}
	full, end := s.prompt/g.spec.BlockTokens, (s.prompt+s.output)/g.spec.BlockTokens
	g.extend(s, end)
	r := &Request{
		Index: g.issued, At: t.at, Session: s.id, Turn: s.turn,
		Keys: s.keys[:full:full], OutKeys: s.keys[full:end:end],
		KeyTokens: g.spec.BlockTokens, PromptTokens: s.prompt, OutputTokens: s.output,
		segments: s.segments[:len(s.segments):len(s.segments)],
	}
	g.issued++
	g.live[s.id] = s
	return r
}

// extend names the session's blocks up to n. A block within the shared prefix gets the prefix's
// name, any other the session's.
func (g *sessionSource) extend(s *session, n int) {
	for i := len(s.keys); i < n; i++ {
		name := mix(g.sessionKey(s.id, 0), uint64(i))
		if (i+1)*g.spec.BlockTokens <= s.shared {
			name = mix(g.prefixKey(s.prefix), uint64(i))
		}
		s.keys = append(s.keys, name)
	}
}

func (g *sessionSource) Done(r *Request, at time.Duration) {
	s := g.live[r.Session]
	if s == nil || s.turn != r.Turn {
		panic(fmt.Sprintf("workload: request %d (session %d, turn %d) done twice or never handed out", r.Index, r.Session, r.Turn))
	}
	delete(g.live, r.Session)
	if s.turn >= g.spec.MaxTurns || s.rng.Float64() >= g.spec.Continue {
		if g.spec.Users > 0 && at < g.opt.Duration {
			g.begin(at)
		}
		return
	}
	at += time.Duration(s.rng.ExpFloat64() * float64(g.spec.Think))
	s.turn++
	s.segments = append(s.segments,
		Segment{Role: Assistant, Tokens: s.output, ReplyOf: s.turn - 1},
		Segment{Role: User, Tokens: g.spec.Suffix, key: g.sessionKey(s.id, s.turn)})
	s.prompt += s.output + g.spec.Suffix
	s.output = int(g.spec.Output.At(s.rng.Float64()))
	if at < g.opt.Duration {
		g.push(s, at)
	}
}

func (g *sessionSource) Total() int          { return 0 }
func (g *sessionSource) Span() time.Duration { return g.opt.Duration }

package scenario

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grapevine.example/chaos/engine"
)

// Load describes the clients. Zero fields take the defaults.
type Load struct {
	Rate      float64 // conversations begun per second; default 10
	Output    [2]int  // tokens of a reply, from and to; default 8 to 80
	HeadBytes int     // of each system prompt; default 2048
	KeepAlive float64 // share of conversations that keep their connection; default 0.5
	Opening   [2]int  // bytes of the first question, from and to; default 2000 to 12000
	Departing float64 // share of requests whose client leaves early; default 0.06
	Long      float64 // share of requests with LongOutput tokens; default 0.03
	// LongOutput is in tokens. Default 600: 3 s at the engines' default rate.
	LongOutput int
}

const (
	meanTurns = 5                      // of a conversation
	meanThink = 300 * time.Millisecond // pause before the next turn, in addition to leastThink
	headCount = 6                      // system prompts shared by the conversations
)

func (l Load) withDefaults() Load {
	l.Rate, l.KeepAlive, l.HeadBytes = cmp.Or(l.Rate, 10), cmp.Or(l.KeepAlive, 0.5), cmp.Or(l.HeadBytes, 2048)
	l.Output, l.Opening = cmp.Or(l.Output, [2]int{8, 80}), cmp.Or(l.Opening, [2]int{2_000, 12_000})
	l.Departing, l.Long, l.LongOutput = cmp.Or(l.Departing, 0.06), cmp.Or(l.Long, 0.03), cmp.Or(l.LongOutput, 600)
	return l
}

// sdkRetries is how often the official clients repeat requests that failed before an answer.
const sdkRetries = 2

// leastThink is about the promised time for gossip to spread.
const leastThink = 200 * time.Millisecond

// maxUnderWay bounds concurrent conversations; those above it are counted and not begun.
const maxUnderWay = 10_000

// traffic is an open loop of conversations. Safe for concurrent use.
type traffic struct {
	load   Load
	seed   uint64
	url    string
	engine engine.ServerConfig
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	l      *ledger
	heads  []string
	whole  context.Context
	// clients are those of the clients file; none: requests are anonymous.
	clients []Client
	// prompts takes what engines computed; nil: nothing.
	prompts *prompts

	underWay chan struct{}
	work     sync.WaitGroup
	mu       sync.Mutex
	broken   error // an error of the harness itself
	floods   atomic.Int64
	requests atomic.Int64
	overflow atomic.Int64
}

func newTraffic(load Load, seed uint64, url string, cfg engine.ServerConfig, dial func(context.Context, string, string) (net.Conn, error), l *ledger) *traffic {
	t := &traffic{load: load.withDefaults(), seed: seed, url: url, engine: cfg, dial: dial, l: l, whole: context.Background(), underWay: make(chan struct{}, maxUnderWay)}
	rng := rand.New(rand.NewPCG(seed, 0x4ead))
	for i := range headCount {
		t.heads = append(t.heads, fmt.Sprintf("You are assistant %d of run %d. %s", i, seed, prose(rng, t.load.HeadBytes)))
	}
	return t
}

func (t *traffic) play(ctx context.Context) error {
	rng := rand.New(rand.NewPCG(t.seed, 0xa771))
	t.work.Go(func() { t.crowd(ctx) })
	for id := 0; sleep(ctx, time.Duration(rng.ExpFloat64()/t.load.Rate*float64(time.Second))) == nil; id++ {
		t.begin(id, func(c *conversation) { t.hold(ctx, c) }, t.heads[rng.IntN(len(t.heads))], "")
	}
	t.work.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.overflow.Load(); n > 0 {
		return fmt.Errorf("scenario: %d conversations were not begun: %d were under way", n, maxUnderWay)
	}
	return t.broken
}

func (t *traffic) begin(id int, hold func(*conversation), head, shape string) {
	select {
	case t.underWay <- struct{}{}:
	default:
		t.overflow.Add(1)
		return
	}
	t.work.Go(func() {
		defer func() { <-t.underWay }()
		c := newConversation(id, t.seed, t.load.Opening, head, shape)
		c.client = holder(t.clients)
		hold(c)
	})
}

// flood sends one-turn requests with one long common prefix.
func (t *traffic) flood(ctx context.Context, rate float64, tokens int) {
	id := int(t.floods.Add(1)) << 32
	rng := rand.New(rand.NewPCG(t.seed, 0xf100d+uint64(id)))
	head := "All these requests ask about one thing. " + prose(rng, tokens*engine.TokenBytes)
	for sleep(ctx, time.Duration(rng.ExpFloat64()/rate*float64(time.Second))) == nil {
		id++
		t.begin(id, func(c *conversation) {
			client := t.client(false)
			defer client.CloseIdleConnections()
			t.turn(client, c, &memory{})
		}, head, chatStream)
	}
}

type memory struct {
	tokens int
	ended  time.Duration
	by     string
}

func (t *traffic) hold(ctx context.Context, c *conversation) {
	client := t.client(c.rng.Float64() < t.load.KeepAlive)
	defer client.CloseIdleConnections()
	var m memory
	for {
		if !t.turn(client, c, &m) || c.rng.Float64() < 1.0/meanTurns {
			return
		}
		if sleep(ctx, leastThink+time.Duration(c.rng.ExpFloat64()*float64(meanThink))) != nil {
			return
		}
	}
}

func (t *traffic) client(keep bool) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: t.dial, DisableKeepAlives: !keep, DisableCompression: true, MaxIdleConnsPerHost: 1}}
}

// turn sends a conversation's next request, with retries, and reports whether it can continue.
func (t *traffic) turn(client *http.Client, c *conversation, m *memory) bool {
	output := t.load.Output[0] + c.rng.IntN(t.load.Output[1]-t.load.Output[0]+1)
	if c.rng.Float64() < t.load.Long {
		output = t.load.LongOutput
	}
	output = cmp.Or(c.output, output)
	by := t.departing(c.rng, output)
	p, err := c.next(t.engine, output)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.broken = fmt.Errorf("scenario: a request of the harness is wrong: %w", err)
		return false
	}
	request := int(t.requests.Add(1)) - 1
	for try := 0; ; try++ {
		a := &Attempt{ID: fmt.Sprintf("c%d-%d-%d-%d", t.seed, c.id, c.turn, try), Request: request, Try: try, Session: c.id, Turn: c.turn, Shape: c.shape, Client: c.client,
			Possible: m.tokens, Kept: m.ended, By: m.by}
		send(t.whole, client, t.l, t.url, a, &p, by)
		if a.Outcome == Complete {
			a.Last = true
			t.l.add(a)
			t.prompts.add(a, &p)
			*m = memory{}
			if p.usage {
				*m = memory{a.Prompt + a.Output, a.End, a.Backend}
			}
			c.said(p.want)
			return true
		}
		again := try < sdkRetries && retried(a)
		a.Last = !again || sleep(t.whole, pauseBefore(try, c.pauses)) != nil
		t.l.add(a)
		if a.Last {
			return false
		}
	}
}

func retried(a *Attempt) bool {
	return a.Outcome == Unanswered || a.Outcome == Refused && (a.Status >= 500 || slices.Contains([]int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests}, a.Status))
}

func pauseBefore(try int, rng *rand.Rand) time.Duration {
	full := 500 * time.Millisecond << try
	return full - time.Duration(rng.Int64N(int64(full/4)))
}

func (t *traffic) departing(rng *rand.Rand, output int) departure {
	leaves, how, where := rng.Float64() < t.load.Departing, rng.IntN(3), rng.Float64()
	switch {
	case !leaves:
		return stays
	case how == 0:
		return departure{after: time.Millisecond + time.Duration(math.Round(where*50))*time.Millisecond, bytes: -1}
	}
	return departure{bytes: int(where * float64(output*engine.TokenBytes))}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

type decider struct {
	body    []byte
	parser  *prompt.Parser
	request prompt.Request
	query   policy.Request
	router  *policy.Router
	attempt policy.Attempt
	now     prefixtree.Time
}

const (
	decideBackends = 64
	decideFacts    = 1_000_000
)

func newDecider(tb testing.TB, size int) *decider { return newDeciderOf(tb, size, decideFacts) }

func newDeciderOf(tb testing.TB, size, facts int) *decider {
	tb.Helper()
	hasher, err := prefixtree.NewHasher([]byte("a secret of the fleet, 32 bytes."), prefixtree.DefaultBlockBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tree, err := prefixtree.New(prefixtree.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	d := &decider{body: longChat(size), parser: prompt.NewParser(hasher), now: now()}
	rnd := rand.New(rand.NewPCG(1, 2))
	chain := make([]prefixtree.Hash, 250)
	for i := range facts / len(chain) {
		for j := range chain {
			chain[j] = prefixtree.Hash(rnd.Uint64())
		}
		tree.Record(prefixtree.Backend(i%decideBackends), chain, d.now, nil)
	}
	if d.router, err = policy.NewRouter(policy.Config{}, tree); err != nil {
		tb.Fatal(err)
	}
	backends := make([]policy.Backend, decideBackends)
	for i := range backends {
		backends[i] = policy.Backend{ID: prefixtree.Backend(i), Generation: 1, Name: fmt.Sprintf("engine-%d", i), Weight: 1}
	}
	view, err := policy.NewView(backends, nil)
	if err != nil {
		tb.Fatal(err)
	}
	d.router.SetView(view)
	if err := d.parser.Parse(prompt.Chat, d.body, prompt.Options{}, &d.request); err != nil {
		tb.Fatal(err)
	}
	tree.Record(7, d.request.Hashes, d.now, nil)
	d.now += prefixtree.Time(time.Minute / time.Millisecond)
	return d
}

func (d *decider) decide(tb testing.TB) prefixtree.Backend {
	if err := d.parser.Parse(prompt.Chat, d.body, prompt.Options{}, &d.request); err != nil {
		tb.Fatal(err)
	}
	return d.pick(tb)
}

func (d *decider) pick(tb testing.TB) prefixtree.Backend {
	d.query = policy.Request{Model: d.request.Model, Session: d.request.Session, Hashes: d.request.Hashes, PromptBytes: d.request.PromptBytes}
	if err := d.router.Pick(&d.query, d.now, &d.attempt); err != nil {
		tb.Fatal(err)
	}
	chosen := d.attempt.Decision().Backend
	d.attempt.End(policy.Outcome{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1, Failed: books.ClientGone}, d.now)
	return chosen
}

func longChat(size int) []byte {
	rnd := rand.New(rand.NewPCG(3, 4))
	words := []string{"the", "engine", "return", "prefix", "if err != nil {", "router", "of", "request\n\t", "token", "key", "state\n", "with"}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := make([]message, 32)
	for i := range messages {
		var text bytes.Buffer
		for text.Len() < size/34 {
			word := words[rnd.IntN(len(words))]
			if rnd.IntN(30) == 0 { // quotes are rare, and would slow the floor
				word = `"` + word + `"`
			}
			text.WriteString(word + " ")
		}
		messages[i] = message{[]string{"user", "assistant"}[i%2], text.String()}
	}
	body, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": messages})
	if err != nil {
		panic(err)
	}
	return body
}

func TestDecideFindsTheHolder(t *testing.T) {
	t.Parallel()
	// Under the race detector a million facts take half a minute.
	if b := newDeciderOf(t, 128<<10, decideFacts/20).decide(t); b != 7 {
		t.Errorf("engine %d was chosen, 7 holds the prompt", b)
	}
}

// BenchmarkDecide has a floor: one quote search and one xxh3 over the body.
func BenchmarkDecide(b *testing.B) {
	for _, kib := range []int{1, 16, 128} {
		d := newDecider(b, kib<<10)
		b.Run(fmt.Sprintf("decide/%dKiB", kib), func(b *testing.B) {
			b.SetBytes(int64(len(d.body)))
			b.ReportAllocs()
			for b.Loop() {
				d.decide(b)
			}
		})
		b.Run(fmt.Sprintf("floor/%dKiB", kib), func(b *testing.B) {
			b.SetBytes(int64(len(d.body)))
			b.ReportAllocs()
			var quotes, sum uint64
			for b.Loop() {
				for rest := d.body; ; quotes++ {
					n := bytes.IndexByte(rest, '"')
					if n < 0 {
						break
					}
					rest = rest[n+1:]
				}
				sum += xxh3.Hash(d.body)
			}
			if quotes == 0 || sum == 0 {
				b.Fatal("no quotes")
			}
		})
	}
}

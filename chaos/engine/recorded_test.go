package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const recordings = "../../proxy/engine/events/testdata/vllm-0.32.0"

// recorded is a step of a real vLLM: requests, and what the engine published until it was silent.
type recorded struct {
	name     string
	Requests []struct {
		Request struct {
			Path    string            `json:"path"`
			Headers map[string]string `json:"headers"`
			Body    map[string]any    `json:"body"`
		} `json:"request"`
		Answer struct {
			Status int             `json:"status"`
			Body   json.RawMessage `json:"body"`
		} `json:"answer"`
	} `json:"requests"`
	Messages []struct {
		Frames   []string `json:"frames"`
		Sequence int64    `json:"sequence"`
	} `json:"messages"`
}

// pair is a member of a map, in the order of the wire.
type pair struct {
	name  string
	value any
}

// unpack reads a msgpack value of the kinds that engines publish. Maps become lists of pairs, whose order matters here.
func unpack(b []byte) (v any, rest []byte) {
	c := b[0]
	size := func(width int) (int, []byte) {
		n := uint64(0)
		for _, x := range b[1 : 1+width] {
			n = n<<8 | uint64(x)
		}
		return int(n), b[1+width:]
	}
	array := func(n int, b []byte) (any, []byte) {
		list := make([]any, n)
		for i := range list {
			list[i], b = unpack(b)
		}
		return list, b
	}
	switch {
	case c < 0x80:
		return uint64(c), b[1:]
	case c < 0x90:
		pairs := make([]pair, c&0xf)
		rest = b[1:]
		for i := range pairs {
			var name any
			name, rest = unpack(rest)
			pairs[i].name = name.(string)
			pairs[i].value, rest = unpack(rest)
		}
		return pairs, rest
	case c < 0xa0:
		return array(int(c&0xf), b[1:])
	case c < 0xc0:
		return string(b[1 : 1+c&0x1f]), b[1+c&0x1f:]
	}
	switch c {
	case 0xc0:
		return nil, b[1:]
	case 0xcb:
		return "a float", b[9:]
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, rest := size(1 << (c - 0xcc))
		return uint64(n), rest
	case 0xd3:
		return int64(binary.BigEndian.Uint64(b[1:])), b[9:]
	case 0xd9:
		n, rest := size(1)
		return string(rest[:n]), rest[n:]
	case 0xdc:
		return array(size(2))
	}
	panic(fmt.Sprintf("msgpack type %#x", c))
}

func unpackBatch(t testing.TB, b []byte) (events [][]pair) {
	t.Helper()
	v, rest := unpack(b)
	batch := v.([]any)
	if len(rest) != 0 || len(batch) != 3 || batch[0] != "a float" || batch[2] != uint64(0) {
		t.Fatalf("batch %v, %d bytes left", batch, len(rest))
	}
	for _, e := range batch[1].([]any) {
		events = append(events, e.([]pair))
	}
	return events
}

func member(e []pair, name string) any {
	for _, p := range e {
		if p.name == name {
			return p.value
		}
	}
	return nil
}

func readRecorded(t *testing.T) (steps []recorded) {
	files, err := filepath.Glob(recordings + "/[0-9]*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := recorded{name: filepath.Base(file)}
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !strings.Contains(s.name, "replay") {
			steps = append(steps, s)
		}
	}
	return steps
}

func (s *recorded) batches(t *testing.T) (batches [][][]pair) {
	for _, m := range s.Messages {
		payload, err := base64.StdEncoding.DecodeString(m.Frames[2])
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, unpackBatch(t, payload))
	}
	return batches
}

// prompts finds the tokens of the recorded prompts. The recordings have the tokens of stored blocks; where a prompt ends within a
// block, tokens are made up.
type prompts struct {
	blocks map[uint64]block
	seen   map[string][][]uint32 // by the text of the request
	made   uint32
}

type block struct {
	parent any
	tokens []uint32
}

// fill makes a prompt of n tokens that begins with the whole blocks up to the given one.
func (p *prompts) fill(last any, n int) []uint32 {
	var tokens []uint32
	for last != nil {
		b := p.blocks[last.(uint64)]
		tokens, last = append(slices.Clone(b.tokens), tokens...), b.parent
	}
	for len(tokens) < n {
		p.made++
		tokens = append(tokens, madeUp+p.made)
	}
	return tokens[:n]
}

// of returns the prompts of request i of a step, n tokens in all.
func (p *prompts) of(s *recorded, i, n int, batches [][][]pair) [][]uint32 {
	body := s.Requests[i].Request.Body
	text := fmt.Sprint(body["messages"], body["prompt"], body["input"])
	if known := p.seen[text]; known != nil {
		return known
	}
	var ends []any // last block of each prompt
	for _, events := range batches {
		for _, e := range events {
			if member(e, "type") != BlockStored {
				continue
			}
			parent, tokens := member(e, "parent_block_hash"), member(e, "token_ids").([]any)
			for k, h := range member(e, "block_hashes").([]any) {
				var ids []uint32
				for _, id := range tokens[32*k : 32*k+32] {
					ids = append(ids, uint32(id.(uint64)))
				}
				p.blocks[h.(uint64)] = block{parent, ids}
				parent = h
			}
			if len(ends) == 0 || member(e, "parent_block_hash") == nil {
				ends = append(ends, parent)
			}
		}
	}
	if len(ends) == 0 {
		ends = []any{nil}
	}
	var list [][]uint32
	for _, end := range ends {
		list = append(list, p.fill(end, n/len(ends)))
	}
	p.seen[text] = list
	return list
}

func promptTokens(t *testing.T, answer json.RawMessage, blocks int) int {
	t.Helper()
	var a struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Input   int `json:"input_tokens"`
			Created int `json:"cache_creation_input_tokens"`
			Read    int `json:"cache_read_input_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(answer, &a); err != nil { // a stream, as text
		return blocks*32 + 1
	}
	return a.Usage.Prompt + a.Usage.Input + a.Usage.Created + a.Usage.Read
}

// The emulator publishes for the requests that a real vLLM was sent what that published: the same members in the same order with the
// same values, hash for hash and token for token. Blocks that hold output have other tokens. Where memory is short, the real engine
// evicts at other times, because it keeps half-filled blocks of ended requests longer and copies of a block as long as the first.
func TestEventsAsRecorded(t *testing.T) {
	cfg := fastConfig()
	cfg.Config = Config{KVTokens: 95 * 32, BlockTokens: 32, MaxRunning: 32, ChunkTokens: 4096, PrefillRate: 1e7, DecodeStep: 200 * time.Microsecond}
	cfg.MaxModelLen = 2048
	cfg.Events, cfg.EventsReplay = "127.0.0.1:0", "127.0.0.1:0"
	s := startServer(t, cfg)
	p := prompts{blocks: make(map[uint64]block), seen: make(map[string][][]uint32)}
	ours := make(map[uint64]uint64) // hashes of the real engine to the emulator's
	theirs := make(map[uint64]uint64)
	match := func(step string, real, emulated any) {
		r, e := real.(uint64), emulated.(uint64)
		if known, there := ours[r]; there && known != e {
			t.Fatalf("%s: block %d was %d, now %d", step, r, known, e)
		}
		if known, there := theirs[e]; there && known != r {
			t.Fatalf("%s: block %d is both %d and %d", step, e, known, r)
		}
		ours[r], theirs[e] = e, r
	}
	at, tokens := 0, 0 // messages and tokens of the emulator that were compared
	var removed, removedHere []uint64
	for _, step := range readRecorded(t) {
		want := step.batches(t)
		for i, r := range step.Requests {
			if r.Request.Path == "/reset_prefix_cache" {
				if status, body := s.post(r.Request.Path, ""); status != r.Answer.Status || string(body) != `{"success":true}` {
					t.Fatalf("%s: %d %s", step.name, status, body)
				}
				continue
			}
			if r.Answer.Status != http.StatusOK {
				continue
			}
			stored := 0
			if len(want) > 0 {
				stored = len(member(want[0][len(want[0])-1], "block_hashes").([]any))
			}
			body := map[string]any{"ignore_eos": true}
			for name, v := range r.Request.Body {
				switch name {
				case "messages", "input", "prompt", "model", "stream", "stream_options":
				case "max_output_tokens":
					body["max_tokens"] = v
				default:
					body[name] = v
				}
			}
			list := p.of(&step, i, promptTokens(t, r.Answer.Body, stored), want)
			body["prompt"] = list
			if len(list) == 1 {
				body["prompt"] = list[0]
			}
			s.completion(body, r.Request.Headers)
		}
		var got [][][]pair
		for _, message := range s.published()[at:] {
			got = append(got, unpackBatch(t, message))
			at++
		}
		removedHere = append(removedHere, removals(got)...)
		removed = append(removed, removals(want)...)
		// The second of two choices is a step later in the recording; so are the batches.
		if !strings.Contains(step.name, "two-choices") && len(got) != len(want) {
			t.Errorf("%s: %d batches, want %d", step.name, len(got), len(want))
		}
		tokens += compare(t, step.name, flat(got), flat(want), match)
	}
	if tokens < 5000 {
		t.Errorf("%d tokens were the same", tokens)
	}
	for i, h := range removed {
		removed[i] = ours[h]
	}
	// The real engine removes both copies of a block one after the other, the emulator a copy before all others.
	const copies = 2
	if len(removed) < 70 || len(removed) != len(removedHere) || !slices.Equal(slices.Compact(removed), removedHere[copies:]) {
		t.Errorf("removed\ngot  %v\nwant %v", removedHere, removed)
	}
}

func flat(batches [][][]pair) (events [][]pair) { return slices.Concat(batches...) }

func removals(batches [][][]pair) (hashes []uint64) {
	for _, e := range flat(batches) {
		if member(e, "type") == BlockRemoved {
			hashes = append(hashes, member(e, "block_hashes").([]any)[0].(uint64))
		}
	}
	return hashes
}

// madeUp is below all tokens that the recordings do not have: unknown ends of prompts, and the emulator's replies.
const madeUp = 1 << 24

// compare compares the events of a step, of removals only the form. It returns how many tokens were the same.
func compare(t *testing.T, step string, got, want [][]pair, match func(step string, real, emulated any)) (known int) {
	t.Helper()
	form := []pair{{"type", BlockRemoved}, {"block_hashes", nil}, {"medium", "GPU"}, {"group_idx", uint64(0)}}
	without := func(events [][]pair) (rest [][]pair) {
		for _, e := range events {
			if member(e, "type") != BlockRemoved {
				rest = append(rest, e)
				continue
			}
			e = slices.Clone(e)
			e[1].value = nil
			if !reflect.DeepEqual(e, form) {
				t.Errorf("%s: removal %v", step, e)
			}
		}
		return rest
	}
	got, want = without(got), without(want)
	known = 0
	if len(got) != len(want) {
		t.Fatalf("%s: %d stores, want %d:\n%v\n%v", step, len(got), len(want), got, want)
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Fatalf("%s: event %d:\ngot  %v\nwant %v", step, i, got[i], want[i])
		}
		for k, w := range want[i] {
			g := got[i][k]
			equal := g.name == w.name
			switch w.name {
			case "block_hashes":
				equal = equal && len(g.value.([]any)) == len(w.value.([]any))
				for n := range w.value.([]any) {
					match(step, w.value.([]any)[n], g.value.([]any)[n])
				}
			case "parent_block_hash":
				equal = equal && (g.value == nil) == (w.value == nil)
				if equal && w.value != nil {
					match(step, w.value, g.value)
				}
			case "token_ids":
				equal = equal && len(g.value.([]any)) == len(w.value.([]any))
				for n, id := range w.value.([]any) {
					if here := g.value.([]any)[n].(uint64); here < madeUp {
						equal = equal && here == id
						known++
					}
				}
			default:
				equal = equal && reflect.DeepEqual(g.value, w.value)
			}
			if !equal {
				t.Errorf("%s: event %d: got %v, want %v", step, i, g, w)
			}
		}
	}
	return known
}

// completion sends a request with the tokens of its prompts.
func (l *live) completion(body map[string]any, headers map[string]string) {
	l.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		l.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, l.url+"/v1/completions", strings.NewReader(string(text)))
	if err != nil {
		l.t.Fatal(err)
	}
	for name, v := range headers {
		req.Header.Set(name, v)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		l.t.Fatalf("%d for %s", resp.StatusCode, text)
	}
}

// published returns the payloads that the engine keeps for replay.
func (l *live) published() (payloads [][]byte) {
	l.t.Helper()
	if err := l.driver.do(func(time.Duration) {}); err != nil {
		l.t.Fatal(err)
	}
	l.Server.events.mu.Lock()
	defer l.Server.events.mu.Unlock()
	for _, m := range l.Server.events.ring {
		payloads = append(payloads, payload(m))
	}
	return payloads
}

// payload is the last frame of a message.
func payload(message []byte) []byte {
	for {
		flags, size, head := message[0], int(message[1]), 2
		if flags&frameLong != 0 {
			size, head = int(binary.BigEndian.Uint64(message[1:])), 9
		}
		if flags&frameMore == 0 {
			return message[head : head+size]
		}
		message = message[head+size:]
	}
}

package scenario

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"grapevine.example/chaos/engine"
)

const (
	chatStream       = "chat-stream"
	chatWhole        = "chat-whole"
	completionStream = "completion-stream"
)

var shapes = []string{chatStream, chatStream, chatStream, chatStream, chatWhole, completionStream}

// withoutUsage is the share of conversations without token counts in streams.
const withoutUsage = 0.15

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is one session, decided by the seed. Not safe for concurrent use.
type conversation struct {
	id     int
	shape  string
	rng    *rand.Rand
	turn   int
	usage  bool   // asks for token counts at the end of streams
	client string // whose it is; ""
	output int    // tokens of each reply; 0: as drawn
	// pauses has its own source: failures do not change the content.
	pauses *rand.Rand

	messages []message
	text     string
}

type payload struct {
	path   string
	body   []byte
	want   []byte
	stream bool
	usage  bool
}

const letters = "etaoinshrdlucmfw"

func prose(rng *rand.Rand, bytes int) string {
	out := make([]byte, 0, bytes+8)
	for len(out) < bytes {
		x := rng.Uint64()
		for range 3 + x>>60%6 {
			out = append(out, letters[x&15])
			x >>= 4
		}
		out = append(out, ' ')
	}
	return string(out)
}

func newConversation(id int, seed uint64, opening [2]int, head string, shape string) *conversation {
	c := &conversation{id: id, shape: shape, rng: rand.New(rand.NewPCG(seed, uint64(id))), pauses: rand.New(rand.NewPCG(^seed, uint64(id)))}
	if c.shape == "" {
		c.shape = shapes[c.rng.IntN(len(shapes))]
	}
	c.usage = c.rng.Float64() >= withoutUsage
	// The number makes every prompt and reply unique.
	first := fmt.Sprintf("This is conversation %d of run %d. %s", id, seed, prose(c.rng, opening[0]+c.rng.IntN(opening[1]-opening[0]+1)))
	if c.shape == completionStream {
		c.text = head + first
	} else {
		c.messages = []message{{"system", head}, {"user", first}}
	}
	return c
}

func (c *conversation) next(cfg engine.ServerConfig, output int) (p payload, err error) {
	c.turn++
	body := map[string]any{"model": cfg.Models[0], "max_tokens": output, "ignore_eos": true}
	p.path = "/v1/chat/completions"
	if c.shape == completionStream {
		p.path = "/v1/completions"
		body["prompt"] = c.text
	} else {
		body["messages"] = c.messages
	}
	if p.stream = c.shape != chatWhole; p.stream {
		body["stream"] = true
		if c.usage {
			body["stream_options"] = map[string]bool{"include_usage": true}
		}
	}
	p.usage = c.usage || !p.stream
	if p.body, err = json.Marshal(body); err != nil {
		return p, err
	}
	replies, err := engine.Replies(cfg, p.path, p.body)
	if err != nil {
		return p, err
	}
	p.want = replies[0]
	return p, nil
}

func (c *conversation) said(reply []byte) {
	more := prose(c.rng, 100+c.rng.IntN(500))
	if c.shape == completionStream {
		c.text += string(reply) + "\n" + more
		return
	}
	c.messages = append(c.messages, message{"assistant", string(reply)}, message{"user", more})
}

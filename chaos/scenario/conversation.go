package scenario

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"grapevine/chaos/engine"
)

// The shapes in which conversations are held.
const (
	chatStream       = "chat-stream"
	chatWhole        = "chat-whole"
	completionStream = "completion-stream"
)

var shapes = []string{chatStream, chatStream, chatStream, chatStream, chatWhole, completionStream}

// message is one turn of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is one session: what was said so far, and how it goes on. All of it follows from the seed. Not safe for concurrent use.
type conversation struct {
	id    int
	shape string
	rng   *rand.Rand
	turn  int

	messages []message // chats
	text     string    // completions
}

// payload is one request of a conversation: what to send and what must come.
type payload struct {
	path   string
	body   []byte
	want   []byte // the reply, byte by byte
	stream bool
}

const letters = "etaoinshrdlucmfw"

// prose is invented text of about so many bytes.
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

// newConversation begins one. head is how it begins, shared with others.
func newConversation(id int, seed uint64, head string, shape string) *conversation {
	c := &conversation{id: id, shape: shape, rng: rand.New(rand.NewPCG(seed, uint64(id)))}
	if c.shape == "" {
		c.shape = shapes[c.rng.IntN(len(shapes))]
	}
	// The number makes every prompt, and so every reply, one of its own.
	first := fmt.Sprintf("This is conversation %d of run %d. %s", id, seed, prose(c.rng, 2_000+c.rng.IntN(10_000)))
	if c.shape == completionStream {
		c.text = head + first
	} else {
		c.messages = []message{{"system", head}, {"user", first}}
	}
	return c
}

// next is the request of the next turn, with a reply of so many tokens.
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
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
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

// said goes on after a reply: what the user says next. It follows from the seed and the turn alone.
func (c *conversation) said(reply []byte) {
	more := prose(c.rng, 100+c.rng.IntN(500))
	if c.shape == completionStream {
		c.text += string(reply) + "\n" + more
		return
	}
	c.messages = append(c.messages, message{"assistant", string(reply)}, message{"user", more})
}

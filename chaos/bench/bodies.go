//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatBodies makes n chat requests of exactly size bytes each, equal for equal seeds. A quarter of
// every body is a shared system prompt; the rest is a unique conversation with escapes, quotes and
// non-ASCII text. They ask for one token, because the answer is not measured.
func chatBodies(n, size int, stream bool, seed uint64) ([][]byte, error) {
	system := proseBytes(rand.New(rand.NewPCG(seed, 0)), size/4)
	bodies := make([][]byte, n)
	for i := range bodies {
		b, err := chatBody(rand.New(rand.NewPCG(seed, uint64(i)+1)), system, size, stream)
		if err != nil {
			return nil, err
		}
		bodies[i] = b
	}
	return bodies, nil
}

func chatBody(rng *rand.Rand, system string, size int, stream bool) ([]byte, error) {
	messages := []chatMessage{{"system", system}, {"user", proseBytes(rng, min(200, size/8))}}
	turn := max(120, size/16)
	for {
		raw, err := encodeChat(messages, stream)
		if err != nil {
			return nil, err
		}
		room := size - len(raw)
		if room < 0 {
			return nil, fmt.Errorf("a chat body of %d bytes does not fit a conversation", size)
		}
		if room < 2*turn+200 {
			messages[len(messages)-1].Content += strings.Repeat("x", room)
			return encodeChat(messages, stream)
		}
		messages = append(messages,
			chatMessage{"assistant", proseBytes(rng, turn*3/4)},
			chatMessage{"user", proseBytes(rng, turn/4)})
	}
}

func encodeChat(messages []chatMessage, stream bool) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Model       string        `json:"model"`
		Messages    []chatMessage `json:"messages"`
		MaxTokens   int           `json:"max_tokens"`
		Temperature float64       `json:"temperature"`
		Stream      bool          `json:"stream"`
	}{"bench", messages, 1, 0.7, stream})
	return bytes.TrimRight(buf.Bytes(), "\n"), err
}

// proseBytes is about n bytes of text as in prompts about code: a line break every dozen words and
// a quoted word in twenty-four, so that JSON escapes one byte in forty, and one non-ASCII word in a
// hundred.
func proseBytes(rng *rand.Rand, n int) string {
	words := [...]string{"the", "request", "router", "prefix", "cache", "token", "engine", "holds", "a", "of", "and", "returns",
		"function", "value", "block", "when", "latency", "is", "measured", "from", "to", "with", "\"quoted\"", "if err != nil {"}
	foreign := [...]string{"naïve", "→", "日本語"}
	var b strings.Builder
	for i := 0; b.Len() < n-10; i++ {
		if rng.IntN(100) == 0 {
			b.WriteString(foreign[rng.IntN(len(foreign))])
		} else {
			b.WriteString(words[rng.IntN(len(words))])
		}
		if i%12 == 11 {
			b.WriteByte('\n')
		} else {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

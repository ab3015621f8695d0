package prompt

import (
	"cmp"
	"slices"
)

// splitting collects what Request.Splits and Request.Prefill depend on.
type splitting struct {
	never  bool
	length bool   // a member bounds the reply
	swaps  []Edit // values that ask for the prompt and one token
	edits  []Edit // scratch
	head   []byte // scratch
}

func (s *splitting) reset() { s.never, s.length, s.swaps = false, false, s.swaps[:0] }

var (
	swapFalse = []byte("false")
	swapNull  = []byte("null")
	swapZero  = []byte("0")
	swapOne   = []byte("1")
)

// member looks at a member of the body's object, whose value is body[from:to]. The KV cache is
// fetched for one prompt and one reply, and without the prompt's log probabilities.
func (s *splitting) member(name, body []byte, from, to int) {
	value := body[from:to]
	var swap []byte
	switch string(name) {
	case "stream":
		swap = swapFalse
	case "stream_options":
		swap = swapNull // engines refuse it without stream
	case "min_tokens":
		swap = swapZero
	case "max_tokens", "max_completion_tokens":
		swap, s.length = swapOne, true
	case "n", "best_of":
		s.never = s.never || string(value) != "1" && string(value) != "null"
	case "echo", "use_beam_search":
		s.never = s.never || string(value) != "false" && string(value) != "null"
	case "prompt_logprobs", "prompt_embeds":
		s.never = s.never || string(value) != "null"
	case "prompt":
		s.never = s.never || !onePrompt(value)
	}
	if swap == nil {
		return
	}
	if len(s.swaps) == maxEdits {
		s.never = true
		return
	}
	s.swaps = append(s.swaps, Edit{from, to, swap})
}

// onePrompt reports whether a prompt is a text or an array of tokens, not an array of prompts.
func onePrompt(value []byte) bool {
	if value[0] != '[' {
		return true
	}
	for _, c := range value[1:] {
		switch {
		case c >= '0' && c <= '9':
			return true
		case c > ' ':
			return false
		}
	}
	return false
}

const oneToken = `"max_tokens":1,`

// finishSplit runs before the request for usage is among the edits.
func (p *Parser) finishSplit(k Kind, r *Request) {
	s := &p.split
	r.Inside = p.inside
	if r.Splits = (k == Chat || k == Completion) && !s.never && p.rest.some; !r.Splits {
		return
	}
	s.edits = append(append(s.edits[:0], p.edits...), s.swaps...)
	slices.SortFunc(s.edits, func(a, b Edit) int { return cmp.Compare(a.From, b.From) })
	s.head = p.appendRoots(s.head[:0])
	if !s.length {
		s.head = append(s.head, oneToken...)
	}
	if len(s.edits) == 0 || s.edits[0].From != p.inside {
		s.edits = slices.Insert(s.edits, 0, Edit{From: p.inside, To: p.inside})
	}
	s.edits[0].Text = s.head
	r.Prefill = s.edits
}

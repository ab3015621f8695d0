package workload

import (
	"container/heap"
	"fmt"
	"time"
)

// Content is a prompt under construction: what precedes it, and texts added one after another. A
// copy of it shares the keys so far; both may grow. The zero value is of no use, see [NewContent].
type Content struct {
	keys      []uint64
	keyTokens int
	state     uint64
	tokens    int
}

// NewContent returns an empty prompt; those of two roots have no key in common.
func NewContent(root uint64, keyTokens int) Content {
	return Content{keyTokens: keyTokens, state: mix(0xc0e7, root)}
}

// Tokens is the length so far.
func (c *Content) Tokens() int { return c.tokens }

// Keys names the full blocks so far; see Request.Keys. It must not be written to.
func (c *Content) Keys() []uint64 { return c.keys[:len(c.keys):len(c.keys)] }

// Add appends the text that id names. Equal texts after equal content give equal keys.
func (c *Content) Add(id uint64, tokens int) {
	c.keys = c.Keys() // copies do not write to each other's
	for done := 0; done < tokens; {
		n := min(tokens-done, c.keyTokens-c.tokens%c.keyTokens)
		done += n
		c.tokens += n
		c.state = mix(mix(c.state, id), uint64(done))
		if c.tokens%c.keyTokens == 0 {
			c.keys = append(c.keys, c.state)
		}
	}
}

// Call is one request of a [Script].
type Call struct {
	// After is the index of an earlier call, whose end starts this one; -1: it starts at At.
	After int
	At    time.Duration // since the end of that call, or since the start of the run
	// Answered is the content with the answer, which extends that of the prompt.
	Prompt, Answered Content
	Session, Turn    int
	Model            string
	NonStreaming     bool
}

// Script is a list of calls, prepared in full, that wait for each other: conversations, and trees of
// agents. Its requests are for the simulator: they have no text.
type Script struct {
	Label string
	Calls []Call
	// Length ends the run: later calls are left out, as are those that wait for them.
	Length time.Duration
}

func (s *Script) Name() string { return s.Label }

func (s *Script) KeyTokens() int { return s.Calls[0].Prompt.keyTokens }

// Source starts a run. Of the options it takes the end: duration and number of requests.
func (s *Script) Source(opt Options) (Source, error) {
	opt, err := opt.checked()
	switch {
	case err != nil:
		return nil, err
	case opt.Speed != 1:
		return nil, fmt.Errorf("%w: a script has its own speed", ErrOptions)
	case opt.Duration == 0:
		opt.Duration = s.Length
	}
	src := &scriptSource{script: s, opt: opt, next: make([][]int, len(s.Calls)), call: map[*Request]int{}}
	for i := range s.Calls {
		if c := &s.Calls[i]; c.After < 0 {
			src.push(i, c.At)
		} else {
			src.next[c.After] = append(src.next[c.After], i)
		}
	}
	return src, nil
}

type scriptSource struct {
	script *Script
	opt    Options
	due    timeline[int] // calls
	next   [][]int       // by call: those that it starts
	call   map[*Request]int
	seq    int // of the next entry of due
	issued int
}

func (s *scriptSource) push(call int, at time.Duration) {
	if at < s.opt.Duration {
		heap.Push(&s.due, timed[int]{at, s.seq, call})
		s.seq++
	}
}

func (s *scriptSource) Peek() (time.Duration, bool) {
	if len(s.due) == 0 || s.opt.Requests > 0 && s.issued >= s.opt.Requests {
		return 0, false
	}
	return s.due[0].at, true
}

func (s *scriptSource) Next() *Request {
	if _, ok := s.Peek(); !ok {
		return nil
	}
	t := heap.Pop(&s.due).(timed[int])
	c := &s.script.Calls[t.what]
	prompt := len(c.Prompt.keys)
	r := &Request{
		Index: s.issued, At: t.at, Session: c.Session, Turn: c.Turn,
		Keys: c.Answered.keys[:prompt:prompt], OutKeys: c.Answered.Keys()[prompt:],
		KeyTokens: c.Prompt.keyTokens, PromptTokens: c.Prompt.tokens, OutputTokens: c.Answered.tokens - c.Prompt.tokens,
		Model: c.Model, NonStreaming: c.NonStreaming,
	}
	s.issued++
	s.call[r] = t.what
	return r
}

func (s *scriptSource) Done(r *Request, at time.Duration) {
	call, ok := s.call[r]
	if !ok {
		panic(fmt.Sprintf("workload: request %d done twice or never handed out", r.Index))
	}
	delete(s.call, r)
	for _, i := range s.next[call] {
		s.push(i, at+s.script.Calls[i].At)
	}
}

func (s *scriptSource) Total() int          { return 0 }
func (s *scriptSource) Span() time.Duration { return s.opt.Duration }

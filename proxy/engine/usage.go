// Package engine reads what vLLM and SGLang report: the usage in answers, streamed or not, and
// metrics. Invalid input yields wrong counts within bounds, never a panic.
package engine

// Usage counts the tokens of one request; -1 means unknown.
type Usage struct {
	PromptTokens int
	CachedTokens int // of these, from the prefix cache
	OutputTokens int
}

// -1 means absent.
type counts struct {
	prompt, input, read, created, cached, output int
}

var noCounts = counts{-1, -1, -1, -1, -1, -1}

// maxTokens bounds a credible count: a thousand times the longest context.
const maxTokens = 1 << 30

func (c *counts) usage() (u Usage, ok bool) {
	u = Usage{PromptTokens: c.prompt, CachedTokens: c.cached, OutputTokens: c.output}
	if u.PromptTokens < 0 && c.input >= 0 {
		// Anthropic's input_tokens excludes cached tokens; that of the Responses API includes them
		// and comes without the other two.
		u.PromptTokens = c.input + max(c.read, 0) + max(c.created, 0)
	}
	if u.CachedTokens < 0 {
		u.CachedTokens = c.read
	}
	if u.PromptTokens >= 0 && u.CachedTokens > u.PromptTokens {
		u.CachedTokens = -1 // not credible
	}
	return u, u.PromptTokens >= 0 || u.CachedTokens >= 0 || u.OutputTokens >= 0
}

// merge copies the counts present in a usage or meta_info object.
func (c *counts) merge(object []byte) {
	for m := membersOf(object); m.next(); {
		switch string(m.key) {
		case "prompt_tokens":
			set(&c.prompt, m.value)
		case "input_tokens":
			set(&c.input, m.value)
		case "completion_tokens", "output_tokens":
			set(&c.output, m.value)
		case "cached_tokens":
			set(&c.cached, m.value)
		case "cache_read_input_tokens":
			set(&c.read, m.value)
		case "cache_creation_input_tokens":
			set(&c.created, m.value)
		case "prompt_tokens_details", "input_tokens_details":
			for d := membersOf(m.value); d.next(); {
				if string(d.key) == "cached_tokens" {
					set(&c.cached, d.value)
				}
			}
		}
	}
}

func set(to *int, value []byte) {
	n := int64(0)
	for _, c := range value {
		if c < '0' || c > '9' || n > maxTokens {
			return
		}
		n = 10*n + int64(c-'0')
	}
	if len(value) > 0 && n <= maxTokens {
		*to = int(n)
	}
}

// smallBody bytes are read from the beginning.
const smallBody = 4 << 10

// ParseUsage returns the usage in the body of an answer, false if it has none. It searches large
// bodies from the end. It does not allocate.
func ParseUsage(body []byte) (u Usage, ok bool) {
	c := noCounts
	at := skipSpace(body, 0)
	switch {
	case at < len(body) && body[at] == '[':
		return sumUsages(body[at:])
	case len(body) <= smallBody:
		c.mergeTop(body[at:])
	default:
		if v := lastMember(body, `"usage"`); v != nil {
			c.merge(v)
		} else if v := lastMember(body, `"meta_info"`); v != nil {
			c.merge(v)
		}
	}
	return c.usage()
}

func (c *counts) mergeTop(object []byte) {
	for m := membersOf(object); m.next(); {
		switch string(m.key) {
		case "usage", "meta_info":
			n := noCounts
			n.merge(m.value)
			if n != noCounts {
				*c = n
			}
		case "input_tokens":
			set(&c.input, m.value)
		}
	}
}

// sumUsages adds SGLang's answers to a batch; a count is known if all its parts are.
func sumUsages(array []byte) (u Usage, ok bool) {
	first := true
	for e := elementsOf(array); e.next(); first = false {
		c := noCounts
		c.mergeTop(e.value)
		v, _ := c.usage()
		if first {
			u = v
			continue
		}
		add(&u.PromptTokens, v.PromptTokens)
		add(&u.CachedTokens, v.CachedTokens)
		add(&u.OutputTokens, v.OutputTokens)
	}
	if first {
		u = Usage{-1, -1, -1}
	}
	return u, u.PromptTokens >= 0 || u.CachedTokens >= 0 || u.OutputTokens >= 0
}

func add(to *int, n int) {
	if *to < 0 || n < 0 {
		*to = -1
		return
	}
	*to += n
}

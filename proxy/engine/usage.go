// Package engine reads what inference engines say of themselves: the usage in their answers, streamed or not, and
// their metrics. It reads OpenAI's, Anthropic's and SGLang's own shapes as vLLM and SGLang produce them.
//
// It does no I/O and takes no decision. Engines are believed to send valid JSON; from anything else it learns
// nothing, or nonsense within bounds, and never panics.
package engine

// Usage is how many tokens one request took. -1 is unknown, which engines also express by null or by leaving a
// count out: it is not zero.
type Usage struct {
	PromptTokens int // the whole prompt, cached or not
	CachedTokens int // of these, served from the prefix cache
	OutputTokens int
}

// counts are the numbers as sent; -1 = not sent.
type counts struct {
	prompt, input, read, created, cached, output int
}

var noCounts = counts{-1, -1, -1, -1, -1, -1}

// maxTokens bounds a believable count, a thousand times the longest context there is; what is larger is unknown.
const maxTokens = 1 << 30

// usage derives the Usage; ok is false if nothing is known.
func (c *counts) usage() (u Usage, ok bool) {
	u = Usage{PromptTokens: c.prompt, CachedTokens: c.cached, OutputTokens: c.output}
	if u.PromptTokens < 0 && c.input >= 0 {
		// Anthropic's input_tokens leaves out what was read from or written to the cache. The Responses API has
		// the same name for the whole, but not the other two.
		u.PromptTokens = c.input + max(c.read, 0) + max(c.created, 0)
	}
	if u.CachedTokens < 0 {
		u.CachedTokens = c.read
	}
	if u.PromptTokens >= 0 && u.CachedTokens > u.PromptTokens {
		u.CachedTokens = -1 // not to be believed
	}
	return u, u.PromptTokens >= 0 || u.CachedTokens >= 0 || u.OutputTokens >= 0
}

// merge takes over the counts of a usage or meta_info object; later ones replace earlier ones, unknown ones do not.
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

// set takes over a whole number that is not negative.
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

// smallBody is the size up to which a body is looked through from its beginning.
const smallBody = 4 << 10

// ParseUsage finds the usage in the body of an answer that was not streamed; ok is false if it tells no count. It
// looks from the end, where engines put it, so that megabytes of embeddings before it cost nothing. Allocates
// nothing.
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

// mergeTop takes over the counts in an answer's object: in usage, in meta_info, or bare (count_tokens).
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

// sumUsages adds up the answers to a batch (SGLang sends an array). A count is known if all its parts are.
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

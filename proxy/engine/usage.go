// Package engine reads what vLLM and SGLang report. Invalid input yields wrong counts within
// bounds, never a panic.
package engine

// Usage counts the tokens of one request; -1 means unknown.
type Usage struct {
	PromptTokens int
	CachedTokens int // of these, from the prefix cache
	OutputTokens int
}

// Unknown means that an answer reports no usage.
var Unknown = Usage{-1, -1, -1}

type counts struct {
	prompt, input, read, created, cached, output int
}

var noCounts = counts{-1, -1, -1, -1, -1, -1}

// maxTokens is a thousand times the longest context.
const maxTokens = 1 << 30

func (c *counts) usage() Usage {
	u := Usage{PromptTokens: c.prompt, CachedTokens: c.cached, OutputTokens: c.output}
	if u.PromptTokens < 0 && c.input >= 0 {
		// Anthropic's input_tokens excludes cached tokens. The Responses API's includes them and
		// comes alone.
		u.PromptTokens = c.input + max(c.read, 0) + max(c.created, 0)
	}
	if u.CachedTokens < 0 {
		u.CachedTokens = c.read
	}
	if u.PromptTokens >= 0 && u.CachedTokens > u.PromptTokens {
		u.CachedTokens = -1 // not credible
	}
	return u
}

func (c *counts) merge(object []byte) {
	for name, value := range membersOf(object) {
		switch string(name) {
		case "prompt_tokens":
			set(&c.prompt, value)
		case "input_tokens":
			set(&c.input, value)
		case "completion_tokens", "output_tokens":
			set(&c.output, value)
		case "cached_tokens":
			set(&c.cached, value)
		case "cache_read_input_tokens":
			set(&c.read, value)
		case "cache_creation_input_tokens":
			set(&c.created, value)
		case "prompt_tokens_details", "input_tokens_details":
			for detail, count := range membersOf(value) {
				if string(detail) == "cached_tokens" {
					set(&c.cached, count)
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

const smallBody = 4 << 10

// ParseUsage returns the usage in an answer. It does not allocate.
func ParseUsage(body []byte) Usage {
	c := noCounts
	at := skipSpace(body, 0)
	switch {
	case at < len(body) && body[at] == '[':
		return sumUsages(body[at:])
	case len(body) <= smallBody:
		c.mergeTop(body[at:])
	default:
		v := lastMember(body, `"usage"`)
		if v == nil {
			v = lastMember(body, `"meta_info"`)
		}
		c.merge(v)
	}
	return c.usage()
}

func (c *counts) mergeTop(object []byte) {
	for name, value := range membersOf(object) {
		switch string(name) {
		case "usage", "meta_info":
			n := noCounts
			n.merge(value)
			if n != noCounts {
				*c = n
			}
		case "input_tokens":
			set(&c.input, value)
		}
	}
}

// sumUsages adds SGLang's answers to a batch.
func sumUsages(array []byte) (u Usage) {
	none := true
	for element := range elementsOf(array) {
		c := noCounts
		c.mergeTop(element)
		v := c.usage()
		u.PromptTokens = sum(u.PromptTokens, v.PromptTokens)
		u.CachedTokens = sum(u.CachedTokens, v.CachedTokens)
		u.OutputTokens = sum(u.OutputTokens, v.OutputTokens)
		none = false
	}
	if none {
		return Unknown
	}
	return u
}

func sum(a, b int) int {
	if a < 0 || b < 0 {
		return -1
	}
	return a + b
}

package prompt

import (
	"bytes"
	"slices"
)

// Edit replaces the bytes [From, To) of a body by Text. The edits of a body are in ascending order
// and do not overlap, so the body can be sent in pieces and need not be copied.
type Edit struct {
	From, To int
	Text     []byte
}

// Options say how to change a body. The zero value removes members that steer engines and adds no
// salt.
type Options struct {
	// Control keeps the members that steer engines.
	Control bool
	// Tenant identifies the prompt's tenant. If not empty, the body gets a salt made of Tenant, the
	// client's own salt and the hasher's key. Prompts with different salts share neither hashes
	// nor, in engines that take a salt, cache.
	Tenant []byte
}

// maxEdits bounds a body's edits, since it is sent as one vector; honest clients need a handful.
const maxEdits = 64

var (
	withUsage   = []byte(`{"include_usage":true}`)
	usageTrue   = []byte(`true`)
	usageOnly   = []byte(`"include_usage":true`)
	usageBefore = []byte(`"include_usage":true,`)
)

const optionMember = `"stream_options":{"include_usage":true}`

// options reads stream_options and prepares the edit that sets include_usage. The last of several
// counts, for include_usage too.
func (p *Parser) options() bool {
	c := &p.ctl
	c.usage, c.continuous, c.optionsGiven, c.ask = false, false, true, ask{}
	from := p.pos
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		c.ask = ask{withUsage, from, p.pos}
		return ok
	case '{':
	default:
		return p.skip() // engines refuse other types
	}
	empty := true
	ok := p.inObject(func(name []byte) (bool, bool) {
		empty = false
		switch string(name) {
		case "include_usage":
			at := p.pos
			var ok bool
			c.usage, ok = p.truth()
			c.ask = ask{usageTrue, at, p.pos}
			return true, ok
		case "continuous_usage_stats":
			var ok bool
			c.continuous, ok = p.truth()
			return true, ok
		}
		return false, true
	})
	switch {
	case c.ask.text != nil:
	case empty:
		c.ask = ask{usageOnly, from + 1, from + 1}
	default:
		c.ask = ask{usageBefore, from + 1, from + 1}
	}
	return ok
}

// ask is the edit that sets include_usage; no edit if text is nil.
type ask struct {
	text     []byte
	from, to int
}

// remains tracks the members of an object of which some are cut out.
type remains struct {
	// end is behind the last member seen, or behind the bracket before the first.
	end  int
	some bool // a member stays
}

func (p *Parser) retain(r *remains) { r.end, r.some = p.pos, true }

// cut removes the member that ends at p.pos, with the comma before it or, if no earlier member
// stays, the comma after it.
func (p *Parser) cut(r *remains) bool {
	from := r.end
	r.end = p.pos
	if !r.some && p.peek() == ',' {
		r.end = p.pos + 1
	}
	if n := len(p.edits) - 1; n >= 0 && p.edits[n].To == from {
		p.edits[n].To = r.end
		return true
	}
	if len(p.edits) == maxEdits {
		return p.fail(from, "too many members that steer engines")
	}
	p.edits = append(p.edits, Edit{From: from, To: r.end})
	return true
}

// bootstrapFields is the prefix of SGLang's members that name where to fetch KV blocks.
var bootstrapFields = []byte("bootstrap_")

// steers reports whether a member tells the engine where to compute or fetch KV blocks. Clients may
// not set these: they allow SSRF, reading another prompt's answer, and crashing the engine.
func steers(name []byte) bool {
	return common[string(name)].how == asSteering || bytes.HasPrefix(name, bootstrapFields)
}

// extraArgs cuts steering members out of vllm_xargs, which vLLM passes to the engine unchanged.
func (p *Parser) extraArgs() bool {
	if p.opt.Control || p.peek() != '{' {
		return p.skip()
	}
	r := remains{end: p.pos + 1}
	return p.inObject(func(name []byte) (bool, bool) {
		gone := steers(name)
		if !p.skip() {
			return true, false
		}
		if gone {
			return true, p.cut(&r)
		}
		p.retain(&r)
		return true, true
	})
}

// finishEdits completes the edits of a parsed body: additions go in front of the first member, the
// usage request into stream_options if present.
func (p *Parser) finishEdits(r *Request) {
	c := &p.ctl
	r.UsageAdded = (p.kind == Chat || p.kind == Completion) && c.stream && !c.usage && !c.continuous &&
		(!c.optionsGiven || c.ask.text != nil)
	if r.UsageAdded && c.optionsGiven {
		at, _ := slices.BinarySearchFunc(p.edits, c.ask.from, func(e Edit, from int) int { return e.From - from })
		p.edits = slices.Insert(p.edits, at, Edit{c.ask.from, c.ask.to, c.ask.text})
	}
	head := p.head[:0]
	if name := saltMember(p.kind); name != "" && len(p.salt) > 0 {
		head = append(head, '"')
		head = append(head, name...)
		head = append(head, `":"`...)
		head = append(head, p.salt...)
		head = append(head, `",`...)
	}
	if r.UsageAdded && !c.optionsGiven {
		head = append(head, optionMember+","...)
	}
	p.head = head
	if len(head) > 0 {
		if !p.rest.some {
			head = head[:len(head)-1]
		}
		if len(p.edits) == 0 || p.edits[0].From != p.inside {
			p.edits = slices.Insert(p.edits, 0, Edit{From: p.inside, To: p.inside})
		}
		p.edits[0].Text = head
	}
	r.Edits = p.edits
}

// saltMember returns the member that holds the salt in bodies of kind k, "" if engines take none
// there.
func saltMember(k Kind) string {
	switch k {
	case Chat, Completion, Responses, Messages:
		return "cache_salt"
	case Generate:
		return "extra_key"
	}
	return ""
}

package prompt

import (
	"bytes"
	"slices"
)

// Edit is one change to a body: the bytes from From up to To are replaced by Text. Edits of one
// body are in ascending order and do not overlap, so that a body is sent in pieces, with the edits
// in between, and is never copied.
type Edit struct {
	From, To int
	Text     []byte
}

// Options say how a body is to be changed on its way to the engine. The zero value removes the
// members that steer engines and adds no salt.
type Options struct {
	// Control leaves the members that steer engines where they are.
	Control bool
	// Tenant identifies whose prompt it is. If it is not empty, the body is given a salt made of it,
	// and of the client's own salt, by the hasher's key. Engines that take a salt share no cache
	// between two salts, and neither do two prompts under different salts share a hash.
	Tenant []byte
}

// maxEdits bounds the edits of one body: it is sent as one vector, and no honest client needs more
// than a handful.
const maxEdits = 64

// What is put in for the usage.
var (
	withUsage   = []byte(`{"include_usage":true}`)
	usageTrue   = []byte(`true`)
	usageOnly   = []byte(`"include_usage":true`)
	usageBefore = []byte(`"include_usage":true,`)
)

const optionMember = `"stream_options":{"include_usage":true}`

// options reads stream_options and notes how to set include_usage in it. Of several, the last counts, here and for
// include_usage within.
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
		return p.skip() // refused by engines; not ours to mend
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

// ask is the edit that sets include_usage; without text it is none.
type ask struct {
	text     []byte
	from, to int
}

// remains follows the members of an object of which some are cut out.
type remains struct {
	end  int  // of the last member that stays or was cut; behind the bracket before the first
	some bool // a member stays
}

// retain notes that the member whose value ended at p.pos stays.
func (p *Parser) retain(r *remains) { r.end, r.some = p.pos, true }

// cut takes the member whose value ended at p.pos out of the body, with the comma before it or, if
// no member before it stays, the comma behind it.
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

// bootstrapFields is how SGLang's members begin that name where a prompt's KV blocks are taken from.
var bootstrapFields = []byte("bootstrap_")

// steers says whether a member tells the engine where to compute, or where to take KV blocks from:
// that is for the operator and not for clients (SSRF, another prompt's answer, a crash of the engine).
func steers(name []byte) bool {
	return common[string(name)].how == asSteering || bytes.HasPrefix(name, bootstrapFields)
}

// extraArgs reads vllm_xargs, which vLLM hands to the engine as they are, and cuts out what steers.
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

// finishEdits completes the edits of a body that was understood: what is added stands in front of
// the first member, and the request for the usage where stream_options are.
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
		if !p.rest.some { // no member follows
			head = head[:len(head)-1]
		}
		if len(p.edits) == 0 || p.edits[0].From != p.inside {
			p.edits = slices.Insert(p.edits, 0, Edit{From: p.inside, To: p.inside})
		}
		p.edits[0].Text = head
	}
	r.Edits = p.edits
}

// saltMember is the member by which engines take a salt in bodies of kind k, "" if they take none.
// SGLang's own API calls it extra_key.
func saltMember(k Kind) string {
	switch k {
	case Chat, Completion, Responses, Messages:
		return "cache_salt"
	case Generate:
		return "extra_key"
	}
	return ""
}

package prompt

// edit is the one change this router makes to bodies: asking for the usage at the end of a stream. It replaces
// body[from:to] by text.
type edit struct {
	text     string
	from, to int
	size     int // of the body it was made for
}

const (
	withUsage = `{"include_usage":true}`

	usageMember  = `"include_usage":true`
	optionMember = `"stream_options":` + withUsage
)

// options reads stream_options and notes how to set include_usage in it. Of several, the last counts, here and for
// include_usage within.
func (p *Parser) options() bool {
	c := &p.ctl
	c.usage, c.continuous, c.optionsGiven, c.edit = false, false, true, edit{}
	from := p.pos
	switch p.peek() {
	case 'n':
		_, ok := p.literal()
		c.edit = edit{text: withUsage, from: from, to: p.pos}
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
			c.edit = edit{text: "true", from: at, to: p.pos}
			return true, ok
		case "continuous_usage_stats":
			var ok bool
			c.continuous, ok = p.truth()
			return true, ok
		}
		return false, true
	})
	switch {
	case c.edit.text != "":
	case empty:
		c.edit = edit{text: usageMember, from: from + 1, to: from + 1}
	default:
		c.edit = edit{text: usageMember + ",", from: from + 1, to: from + 1}
	}
	return ok
}

// finish settles the edit at the end of the body's object, whose members begin at inside.
func (c *controls) finish(k Kind, inside int, empty bool) {
	switch {
	case k != Chat && k != Completion, !c.stream, c.usage, c.continuous:
		c.edit = edit{}
	case c.optionsGiven:
	case empty:
		c.edit = edit{text: optionMember, from: inside, to: inside}
	default:
		c.edit = edit{text: optionMember + ",", from: inside, to: inside}
	}
}

// AppendWithUsage appends body, the one r was parsed from, to dst with stream_options.include_usage set to true
// and every other byte as it was. It appends body unchanged if there is nothing to ask for or nowhere to ask: the
// request does not stream, is neither chat nor completion, asked for the usage itself, or was not understood; and
// if continuous_usage_stats is set without include_usage, which our asking would bring to life in every chunk.
func (r *Request) AppendWithUsage(dst, body []byte) []byte {
	e := &r.edit
	if e.text == "" || e.size != len(body) {
		return append(dst, body...)
	}
	dst = append(dst, body[:e.from]...)
	dst = append(dst, e.text...)
	return append(dst, body[e.to:]...)
}

// UsageEdited says whether AppendWithUsage changes the body, so that the usage chunk of the answer is ours to
// remove.
func (r *Request) UsageEdited() bool { return r.edit.text != "" }

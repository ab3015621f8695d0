package prompt

import (
	"bytes"
	"strconv"
)

// controls concern the request but not the prompt.
type controls struct {
	stream       bool
	usage        bool // include_usage
	continuous   bool // continuous_usage_stats
	max          [4]int
	session      [6]op
	ask          ask
	optionsGiven bool
}

// control reads a member of the root or the controls; null means absent.
func (p *Parser) control(f field) bool {
	p.peek()
	c := &p.ctl
	ok := false
	switch f.how {
	case asRoot:
		p.root[f.slot], ok = p.rootString()
	case asStream:
		c.stream, ok = p.truth()
	case asMaxTokens:
		c.max[f.slot], ok = p.count()
	case asSession:
		c.session[f.slot], ok = p.scalar()
	case asSessionObject:
		c.session[f.slot] = op{}
		ok = p.inObject(func(name []byte) (bool, bool) {
			switch string(name) {
			case "session_id", "user_id", "id":
			default:
				return false, true
			}
			if (f.slot == 4) != (string(name) == "user_id") {
				return false, true
			}
			var ok bool
			c.session[f.slot], ok = p.scalar()
			return true, ok
		})
	case asSampling:
		c.max[f.slot] = 0
		ok = p.inObject(func(name []byte) (bool, bool) {
			if string(name) != "max_new_tokens" {
				return false, true
			}
			var ok bool
			c.max[f.slot], ok = p.count()
			return true, ok
		})
	case asOptions:
		ok = p.options()
	case asExtraArgs:
		ok = p.extraArgs()
	case asSteering:
		ok = p.skip()
	}
	return ok
}

// inObject calls each for every member of an object. each reports whether it read the value.
func (p *Parser) inObject(each func(name []byte) (read, ok bool)) bool {
	if p.peek() != '{' {
		return p.skip()
	}
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		key, more, ok := p.member(first)
		if !more || !ok {
			return ok
		}
		read, ok := each(p.tape.bytes(key))
		if !ok || !read && !p.skip() {
			return false
		}
	}
}

// rootString reads a string's text, or other JSON behind a marker.
func (p *Parser) rootString() (op, bool) {
	switch p.peek() {
	case '"':
		return p.word()
	case 'n':
		_, ok := p.literal()
		return op{}, ok
	}
	at := p.tape.mark()
	if !p.other() {
		return op{}, false
	}
	return p.tape.flatten(at), true
}

// scalar reads a string or number as text.
func (p *Parser) scalar() (op, bool) {
	switch c := p.peek(); {
	case c == '"':
		return p.word()
	case c == '-' || c >= '0' && c <= '9':
		from := p.pos
		raw, _, ok := p.number()
		return op{uint32(from), uint32(len(raw))}, ok
	}
	return op{}, p.skip()
}

// count reads a whole number up to 2^30, else 0.
func (p *Parser) count() (int, bool) {
	if c := p.peek(); c < '0' || c > '9' {
		return 0, p.skip()
	}
	raw, whole, ok := p.number()
	if !ok || !whole || len(raw) > 10 {
		return 0, ok
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil || n > 1<<30 {
		return 0, true
	}
	return n, true
}

// truth reads a boolean as engines do, which also accept 1 and a few words.
func (p *Parser) truth() (bool, bool) {
	switch c := p.peek(); {
	case c == 't' || c == 'f' || c == 'n':
		s, ok := p.literal()
		return s == "true", ok
	case c == '"':
		o, ok := p.word()
		if !ok || o.n > 4 {
			return false, ok
		}
		switch string(bytes.ToLower(p.tape.bytes(o))) {
		case "true", "t", "1", "on", "y", "yes":
			return true, true
		}
		return false, true
	case c == '1':
		raw, _, ok := p.number()
		return string(raw) == "1" || string(raw) == "1.0", ok
	}
	return false, p.skip()
}

func (p *Parser) fill(r *Request) {
	c := &p.ctl
	r.Model = p.decoded(p.root[rootModel])
	r.LoRA = p.decoded(p.root[rootLoRA])
	r.Stream = c.stream
	r.UsageAsked = c.usage
	for _, n := range c.max {
		if r.MaxTokens == 0 {
			r.MaxTokens = n
		}
	}
	for _, o := range c.session {
		if r.Session == nil {
			r.Session = p.decoded(o)
		}
	}
}

// decoded unescapes canonical text.
func (p *Parser) decoded(o op) []byte {
	if o.n == 0 {
		return nil
	}
	b := p.tape.bytes(o)
	if b[0] == markOther {
		return nil
	}
	at := bytes.IndexByte(b, '\\')
	if at < 0 {
		return b
	}
	from := len(p.texts)
	for ; at >= 0; at = bytes.IndexByte(b, '\\') {
		p.texts = append(p.texts, b[:at]...)
		n := 2
		switch c := b[at+1]; c {
		case 'n':
			c = '\n'
			p.texts = append(p.texts, c)
		case 't':
			p.texts = append(p.texts, '\t')
		case 'r':
			p.texts = append(p.texts, '\r')
		case 'b':
			p.texts = append(p.texts, '\b')
		case 'f':
			p.texts = append(p.texts, '\f')
		case 'u':
			p.texts = append(p.texts, byte(hex4(b[at:])))
			n = 6
		default:
			p.texts = append(p.texts, c)
		}
		b = b[at+n:]
	}
	p.texts = append(p.texts, b...)
	return p.texts[from:len(p.texts):len(p.texts)]
}

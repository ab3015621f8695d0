package prompt

import (
	"bytes"
	"slices"

	"grapevine.example/prefixtree"
)

// NewParser returns a parser that hashes with h.
func NewParser(h *prefixtree.Hasher) *Parser { return &Parser{hasher: h} }

// Parse scans body once and fills r, without hashes and edits after an *Error. Bodies of kind Other
// are not read.
func (p *Parser) Parse(k Kind, body []byte, o Options, r *Request) error {
	*r = Request{ResponseID: -1}
	if k == Other {
		return nil
	}
	err := p.scan(k, body, o)
	p.opt.Tenant = nil
	p.fill(r)
	if err != nil {
		return err
	}
	if o.Follow != nil {
		p.alias = o.Follow(r)
		p.editModel()
	}
	salted := rootCount // the root that the salt replaces; rootCount if none
	p.salt = p.salt[:0]
	if len(o.Tenant) > 0 {
		salted = rootSalt
		if saltMember(k) == "extra_key" {
			salted = rootExtra
		}
		p.salt = p.hasher.Salt(p.salt, o.Tenant, p.tape.bytes(p.root[salted]))
	}
	if o.Split {
		p.finishSplit(k, r)
	}
	p.finishEdits(r)
	c := &p.chain
	c.Reset(p.hasher)
	for i, o := range p.root {
		switch {
		case i == salted:
			c.Root(p.salt)
		case i == rootModel && p.alias != nil:
			c.Root(p.alias)
		default:
			c.Root(p.tape.bytes(o))
		}
	}
	for _, s := range p.slots {
		for _, o := range p.tape.ops[s.from:s.to] {
			p.write(o)
		}
	}
	c.Mark()
	r.Hashes, r.Marks = c.Hashes(), c.Marks()
	r.PromptBytes = c.Len()
	return nil
}

// write hashes an op and marks where messages begin. Only the arena has markers.
func (p *Parser) write(o op) {
	b := p.tape.bytes(o)
	if o.off&arenaBit != 0 {
		for i := bytes.IndexByte(b, markMessage); i >= 0; i = bytes.IndexByte(b, markMessage) {
			p.chain.Write(b[:i])
			p.chain.Mark()
			p.chain.Write(b[i : i+1])
			b = b[i+1:]
		}
	}
	p.chain.Write(b)
}

func (p *Parser) scan(k Kind, body []byte, o Options) error {
	p.opt, p.edits = o, p.edits[:0]
	p.split.reset()
	p.tape.reset(body)
	if 32*cap(p.members)+16*cap(p.spans)+4*cap(p.table) > keepBytes {
		p.members, p.spans, p.table = nil, nil, nil
	}
	p.body, p.pos, p.depth, p.level, p.kind = body, 0, 0, 0, k
	p.members, p.bad = p.members[:0], Error{}
	p.slots, p.root, p.ctl = [slotCount]span{}, [rootCount]op{}, controls{}
	p.model, p.alias, p.kept = span{}, nil, p.kept[:0]
	for range o.Members {
		p.kept = append(p.kept, op{})
	}
	switch {
	case len(body) > MaxBody:
		p.fail(MaxBody, "body too long")
	case p.peek() != '{':
		p.fail(p.pos, "body is not a JSON object")
	default:
		p.top()
		if p.peek(); p.pos < len(body) {
			p.fail(p.pos, "bytes after the body's object")
		}
	}
	if p.bad.Reason == "" {
		return nil
	}
	bad := p.bad
	return &bad
}

func (p *Parser) top() {
	p.inside, p.rest = p.pos+1, remains{end: p.pos + 1}
	for key := range p.object {
		name := p.tape.bytes(key)
		f, known := perKind[p.kind][string(name)]
		if !known {
			f = common[string(name)]
		}
		gone := p.unwanted(name, f)
		at := p.pos
		keep := -1
		if len(p.opt.Members) > 0 {
			keep = slices.Index(p.opt.Members, string(name))
		}
		switch {
		case f.how == asIgnored && keep >= 0:
			p.peek()
			p.kept[keep] = p.scalar()
		case f.how == asIgnored:
			p.skip()
		case f.how >= asRoot:
			p.control(f)
			if keep >= 0 && f.how == asSession {
				p.kept[keep] = p.ctl.session[f.slot]
			}
		default: // the last of several wins
			from := p.tape.mark()
			p.value(key, f)
			p.slots[f.slot] = p.tape.since(from)
		}
		if p.opt.Split {
			p.split.member(name, p.body, at, p.pos)
		}
		p.end(&p.rest, gone)
	}
}

func (p *Parser) unwanted(name []byte, f field) bool {
	if f.how == asRoot {
		return len(p.opt.Tenant) > 0 && string(name) == saltMember(p.kind)
	}
	if f.how == asResponseID {
		return p.opt.NameResponse && !p.opt.Control
	}
	return !p.opt.Control && steers(name) || p.opt.Unranked && string(name) == "priority"
}

// record reads an object whose members follow the tape after start in the list's order. Other values
// count as a text.
func (p *Parser) record(start int, list inOrder, others how) {
	if p.peek() != '{' {
		p.field(0)
		return
	}
	f, base := parts{p.tape.since(start)}, len(p.members)
	p.read(list, others, &f)
	p.settle(base, true)
	p.arrangeMembers(start, base, f[:]...)
}

// read returns the text of the member asKind.
func (p *Parser) read(list inOrder, others how, f *parts) (kind op) {
	for key := range p.object {
		d := list.find(p.tape.bytes(key))
		if d.slot == 0 {
			d.how = others
		}
		from := p.tape.mark()
		switch d.how {
		case asIgnored:
			p.skip()
		case asExtra:
			p.extra(key)
		case asURL:
			p.url(key)
		case asKind:
			if kind = (op{}); p.peek() == '"' {
				kind = p.word()
			} else {
				p.skip()
			}
		default:
			p.value(key, d)
			f[d.slot] = p.tape.since(from)
		}
	}
	return kind
}

func (p *Parser) value(key op, f field) {
	switch f.how {
	case asTrue:
		p.setting(key, f, "true")
	case asFalse:
		p.setting(key, f, "false")
	case asChoice:
		// "none" and a named tool change the prompt (in SGLang always, in vLLM by option); these
		// constrain only the output.
		p.setting(key, f, `"auto"`, `"required"`, `"any"`)
	case asTools:
		for range p.list {
			p.tool(f.mark)
		}
	case asSystem:
		p.system()
	case asMessages:
		for range p.list {
			p.message()
		}
	case asItems:
		p.items()
	case asPrompt:
		p.prompts(f.mark)
	case asText:
		p.field(f.mark)
	case asArguments:
		p.arguments()
	case asContent:
		p.content()
	case asNested:
		p.level++
		p.content()
		p.level--
	case asFailed:
		if p.truth() {
			p.tape.addByte(markFailed)
		}
	case asCalls:
		for range p.list {
			p.call()
		}
	case asCall:
		p.call()
	case asCallBody:
		p.record(p.tape.mark(), callMembers, asIgnored)
	case asToolType:
		p.toolType()
	case asToolBody:
		p.record(p.tape.mark(), toolMembers, asExtra)
	case asSchema:
		p.schema()
	case asJSON:
		p.json(true)
	default:
		p.setting(key, f)
	}
}

// Empty and default values are not in the prompt.
func (p *Parser) setting(key op, f field, defaults ...string) {
	from := p.tape.mark()
	p.tape.addByte(f.mark)
	p.memberName(key)
	at := p.tape.mark()
	p.json(f.how == asSorted || f.how == asChoice || f.how == asMedia)
	switch {
	case p.is(at, "null", "{}", "[]") || p.is(at, defaults...):
		p.tape.cut(from)
	case f.how == asMedia:
		p.media.Reset()
		p.feed(p.tape.since(at))
		p.tape.cut(at)
		p.addDigest()
	default:
		p.tape.coalesce(from)
	}
}

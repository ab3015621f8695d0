package prompt

import "maps"

// The members of a body that matter, per kind; others do not change the prompt.

// slot is a place in the prompt, in template order.
type slot uint8

const (
	slotTemplate slot = iota
	slotTemplateArgs
	slotDocuments
	slotReasoning
	slotEffort
	slotMediaArgs
	slotTruncate
	slotSpecial
	slotPrevious
	slotStored
	slotChoice
	slotImages
	slotAudio
	slotVideo
	slotTools
	slotFunctions
	slotSystem
	slotMessages
	slotFirst // first of a pair; B to D hold the same under other names
	slotFirstB
	slotFirstC
	slotFirstD
	slotPrompt
	slotIDs
	slotEmbeds
	slotSecond // likewise
	slotSecondB
	slotSecondC
	slotSecondD
	slotSuffix
	slotContinue
	slotGeneration

	slotCount
)

// Root strings affect every block.
const (
	rootModel = iota
	rootLoRA
	rootSalt
	rootExtra

	rootCount
)

// how is the way to read a member.
type how uint8

const (
	asIgnored how = iota

	// Top-level members that matter to the prompt.
	asSetting // changes the template
	asTrue    // the same, true by default
	asFalse   // the same, false by default
	asSorted  // the same, members sorted
	asChoice  // the same, some values left out
	asMedia   // the same, by hash
	asTools
	asSystem
	asMessages
	asItems
	asPrompt

	// Members of messages, tools, parts and items.
	asText // behind the mark
	asArguments
	asContent
	asNested // content of a part
	asFailed
	asCalls
	asCall
	asCallBody
	asToolType
	asToolBody
	asSchema
	asJSON
	asURL
	asKind
	asExtra

	// Top-level members that concern the request.
	asRoot // into root[slot]
	asStream
	asMaxTokens // into controls.max[slot]
	asSession   // into controls.session[slot]
	asSessionObject
	asOptions
	asSampling
	asSteering // cut out unless Options.Control
	asExtraArgs
)

// field says how to read a member, into which slot, and the marker before it.
type field struct {
	slot slot
	how  how
	mark byte
}

// inOrder lists the members of an object in template order. A member's slot is its place, counted
// from 1.
type inOrder []struct {
	name string
	how  how
	mark byte
}

// find returns the field of a name, the zero field if unknown. Comparing a dozen
// names is faster than a map.
func (list inOrder) find(name []byte) field {
	for i := range list {
		if m := &list[i]; m.name == string(name) {
			return field{slot(i + 1), m.how, m.mark}
		}
	}
	return field{}
}

// parts are an object's spans by slot; slot 0 is what comes before its members.
type parts [11]span

// common holds for every kind.
var common = map[string]field{
	"model":      {rootModel, asRoot, 0},
	"lora_path":  {rootLoRA, asRoot, 0},
	"cache_salt": {rootSalt, asRoot, 0},
	"extra_key":  {rootExtra, asRoot, 0},

	"stream":                {0, asStream, 0},
	"stream_options":        {0, asOptions, 0},
	"max_completion_tokens": {0, asMaxTokens, 0},
	"max_output_tokens":     {1, asMaxTokens, 0},
	"max_tokens":            {2, asMaxTokens, 0},
	"sampling_params":       {3, asSampling, 0},

	"session_id":       {0, asSession, 0},
	"user":             {1, asSession, 0},
	"user_id":          {2, asSession, 0},
	"session_params":   {3, asSessionObject, 0},
	"metadata":         {sessionUser, asSessionObject, 0},
	"prompt_cache_key": {5, asSession, 0},

	"kv_transfer_params":        {0, asSteering, 0},
	"ec_transfer_params":        {0, asSteering, 0},
	"kv_cache_report_mode":      {0, asSteering, 0},
	"data_parallel_rank":        {0, asSteering, 0},
	"data_parallel_rank_decode": {0, asSteering, 0},
	"routed_dp_rank":            {0, asSteering, 0},
	"disagg_prefill_dp_rank":    {0, asSteering, 0},
	"decode_tp_size":            {0, asSteering, 0},
	"vllm_xargs":                {0, asExtraArgs, 0},

	"truncate_prompt_tokens": {slotTruncate, asSetting, markSetting},
	"mm_processor_kwargs":    {slotMediaArgs, asSorted, markSetting},
}

var chat = map[string]field{
	"messages":               {slotMessages, asMessages, 0},
	"tools":                  {slotTools, asTools, markTool},
	"functions":              {slotFunctions, asTools, markFunction},
	"tool_choice":            {slotChoice, asChoice, markSetting},
	"documents":              {slotDocuments, asSetting, markSetting},
	"chat_template":          {slotTemplate, asSetting, markSetting},
	"chat_template_kwargs":   {slotTemplateArgs, asSorted, markSetting},
	"reasoning":              {slotReasoning, asSorted, markSetting},
	"reasoning_effort":       {slotEffort, asSetting, markSetting},
	"add_special_tokens":     {slotSpecial, asFalse, markSetting},
	"continue_final_message": {slotContinue, asFalse, markTail},
	"add_generation_prompt":  {slotGeneration, asTrue, markTail},
}

var messages = map[string]field{
	"messages":    {slotMessages, asMessages, 0},
	"system":      {slotSystem, asSystem, 0},
	"tools":       {slotTools, asTools, markTool},
	"tool_choice": {slotChoice, asChoice, markSetting},
	"thinking":    {slotReasoning, asSorted, markSetting},

	"chat_template_kwargs": {slotTemplateArgs, asSorted, markSetting},
}

var responses = map[string]field{
	"input":                {slotMessages, asItems, 0},
	"instructions":         {slotSystem, asSystem, 0},
	"tools":                {slotTools, asTools, markTool},
	"tool_choice":          {slotChoice, asChoice, markSetting},
	"reasoning":            {slotReasoning, asSorted, markSetting},
	"previous_response_id": {slotPrevious, asSetting, markSetting},
	"prompt":               {slotStored, asSorted, markSetting},
	"chat_template_kwargs": {slotTemplateArgs, asSorted, markSetting},
}

var perKind = [kinds]map[string]field{
	Chat: chat,
	Completion: {
		"prompt":             {slotPrompt, asPrompt, 0},
		"prompt_embeds":      {slotEmbeds, asMedia, markSetting},
		"suffix":             {slotSuffix, asSetting, markTail},
		"add_special_tokens": {slotSpecial, asTrue, markSetting},
	},
	Responses:   responses,
	Embeddings:  with(chat, map[string]field{"input": {slotPrompt, asPrompt, 0}}),
	Messages:    messages,
	CountTokens: messages,
	Generate: {
		"text":         {slotPrompt, asPrompt, 0},
		"input_ids":    {slotIDs, asPrompt, 0},
		"input_embeds": {slotEmbeds, asMedia, markSetting},
		"image_data":   {slotImages, asMedia, markSetting},
		"audio_data":   {slotAudio, asMedia, markSetting},
		"video_data":   {slotVideo, asMedia, markSetting},
	},
	Tokenize:   with(chat, map[string]field{"prompt": {slotPrompt, asPrompt, 0}}),
	Detokenize: {"tokens": {slotPrompt, asPrompt, 0}},
	Score: {
		"text_1":    {slotFirst, asPrompt, 0},
		"queries":   {slotFirstB, asPrompt, 0},
		"query":     {slotFirstC, asPrompt, 0},
		"data_1":    {slotFirstD, asPrompt, 0},
		"text_2":    {slotSecond, asPrompt, markSecond},
		"documents": {slotSecondB, asPrompt, markSecond},
		"items":     {slotSecondC, asPrompt, markSecond},
		"data_2":    {slotSecondD, asPrompt, markSecond},
	},
	Rerank: {
		"query":     {slotFirst, asPrompt, 0},
		"documents": {slotSecond, asPrompt, markSecond},
	},
	Pooling: with(chat, map[string]field{
		"input": {slotPrompt, asPrompt, 0},
		"data":  {slotSecond, asPrompt, markSecond},
	}),
}

func with(base, more map[string]field) map[string]field {
	all := maps.Clone(base)
	maps.Copy(all, more)
	return all
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
		switch {
		case f.how == asIgnored:
			p.skip()
		case f.how >= asRoot:
			p.control(f)
		default: // the last of several wins
			from := p.tape.mark()
			p.value(key, f)
			p.slots[f.slot] = p.tape.since(from)
		}
		if gone {
			p.cut(&p.rest)
		} else {
			p.retain(&p.rest)
		}
	}
}

// unwanted reports whether to cut a member: it steers the engine, or a tenant's salt replaces it.
func (p *Parser) unwanted(name []byte, f field) bool {
	if f.how == asRoot {
		return len(p.opt.Tenant) > 0 && string(name) == saltMember(p.kind)
	}
	return !p.opt.Control && steers(name)
}

// read reads the object at p.pos: members in the list into f, by their slots; others are extra
// members or ignored. It returns the text of the member asKind.
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

// value puts a member's value on the tape.
func (p *Parser) value(key op, f field) {
	switch f.how {
	case asTrue:
		p.setting(key, f, "true")
	case asFalse:
		p.setting(key, f, "false")
	case asChoice:
		// "none" and a named tool change the prompt (in SGLang always, in vLLM by option); these
		// values constrain only the output.
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
		p.callBody(p.tape.mark())
	case asToolType:
		p.toolType()
	case asToolBody:
		p.toolBody(p.tape.mark())
	case asSchema:
		p.schema()
	case asJSON:
		p.json(true)
	default:
		p.setting(key, f)
	}
}

// setting puts marker, name and JSON on the tape unless the value is empty or a default.
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

// is reports whether the tape after a mark is one of these values.
func (p *Parser) is(at int, values ...string) bool {
	if len(p.tape.ops) != at+1 {
		return false
	}
	b := p.tape.bytes(p.tape.ops[at])
	for _, v := range values {
		if string(b) == v {
			return true
		}
	}
	return false
}

// keep makes the tape after start what comes before an object's members, lead and these members.
func (p *Parser) keep(start, base int, list inOrder, f *parts, lead span, names ...string) {
	p.members = p.members[:base]
	order := parts{f[0], lead}
	for i, name := range names {
		order[2+i] = f[list.find([]byte(name)).slot]
	}
	p.tape.arrange(start, order[:])
}

// lead puts markers (0 for none) around a text on the tape.
func (p *Parser) lead(before byte, text string, after byte) span {
	from := p.tape.mark()
	if before != 0 {
		p.tape.addByte(before)
	}
	p.tape.add([]byte(text))
	if after != 0 {
		p.tape.addByte(after)
	}
	return p.tape.since(from)
}

// list is array where null is no element and other values become JSON.
func (p *Parser) list(yield func() bool) {
	switch p.peek() {
	case '[':
		p.array(yield)
	case 'n':
		p.literal()
	default:
		p.other()
	}
}

// other reads a value of unexpected shape.
func (p *Parser) other() {
	p.tape.addByte(markOther)
	p.json(true)
}

package prompt

import "bytes"

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

type how uint8

const (
	asSetting how = iota // changes the template
	asSorted             // the same, members sorted
	asMedia              // the same, by hash
	asTail               // acts behind the messages
	asChoice
	asTools
	asFunctions
	asSystem
	asMessages
	asItems
	asPrompt
	asSecond
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

type field struct {
	slot slot
	how  how
	dflt string // literal that equals leaving the member out
}

// common holds for every kind.
var common = map[string]field{
	"model":      {rootModel, asRoot, ""},
	"lora_path":  {rootLoRA, asRoot, ""},
	"cache_salt": {rootSalt, asRoot, ""},
	"extra_key":  {rootExtra, asRoot, ""},

	"stream":                {0, asStream, ""},
	"stream_options":        {0, asOptions, ""},
	"max_completion_tokens": {0, asMaxTokens, ""},
	"max_output_tokens":     {1, asMaxTokens, ""},
	"max_tokens":            {2, asMaxTokens, ""},
	"sampling_params":       {3, asSampling, ""},

	"session_id":       {0, asSession, ""},
	"user":             {1, asSession, ""},
	"user_id":          {2, asSession, ""},
	"session_params":   {3, asSessionObject, ""},
	"metadata":         {4, asSessionObject, ""},
	"prompt_cache_key": {5, asSession, ""},

	"kv_transfer_params":        {0, asSteering, ""},
	"ec_transfer_params":        {0, asSteering, ""},
	"kv_cache_report_mode":      {0, asSteering, ""},
	"data_parallel_rank":        {0, asSteering, ""},
	"data_parallel_rank_decode": {0, asSteering, ""},
	"routed_dp_rank":            {0, asSteering, ""},
	"disagg_prefill_dp_rank":    {0, asSteering, ""},
	"decode_tp_size":            {0, asSteering, ""},
	"vllm_xargs":                {0, asExtraArgs, ""},

	"truncate_prompt_tokens": {slotTruncate, asSetting, ""},
	"mm_processor_kwargs":    {slotMediaArgs, asSorted, ""},
}

var chat = map[string]field{
	"messages":               {slotMessages, asMessages, ""},
	"tools":                  {slotTools, asTools, ""},
	"functions":              {slotFunctions, asFunctions, ""},
	"tool_choice":            {slotChoice, asChoice, ""},
	"documents":              {slotDocuments, asSetting, ""},
	"chat_template":          {slotTemplate, asSetting, ""},
	"chat_template_kwargs":   {slotTemplateArgs, asSorted, ""},
	"reasoning":              {slotReasoning, asSorted, ""},
	"reasoning_effort":       {slotEffort, asSetting, ""},
	"add_special_tokens":     {slotSpecial, asSetting, "false"},
	"continue_final_message": {slotContinue, asTail, "false"},
	"add_generation_prompt":  {slotGeneration, asTail, "true"},
}

var messages = map[string]field{
	"messages":    {slotMessages, asMessages, ""},
	"system":      {slotSystem, asSystem, ""},
	"tools":       {slotTools, asTools, ""},
	"tool_choice": {slotChoice, asChoice, ""},
	"thinking":    {slotReasoning, asSorted, ""},

	"chat_template_kwargs": {slotTemplateArgs, asSorted, ""},
}

var responses = map[string]field{
	"input":                {slotMessages, asItems, ""},
	"instructions":         {slotSystem, asSystem, ""},
	"tools":                {slotTools, asTools, ""},
	"tool_choice":          {slotChoice, asChoice, ""},
	"reasoning":            {slotReasoning, asSorted, ""},
	"previous_response_id": {slotPrevious, asSetting, ""},
	"prompt":               {slotStored, asSorted, ""},
	"chat_template_kwargs": {slotTemplateArgs, asSorted, ""},
}

var perKind = [kinds]map[string]field{
	Chat: chat,
	Completion: {
		"prompt":             {slotPrompt, asPrompt, ""},
		"prompt_embeds":      {slotEmbeds, asMedia, ""},
		"suffix":             {slotSuffix, asTail, ""},
		"add_special_tokens": {slotSpecial, asSetting, "true"},
	},
	Responses:   responses,
	Embeddings:  with(chat, map[string]field{"input": {slotPrompt, asPrompt, ""}}),
	Messages:    messages,
	CountTokens: messages,
	Generate: {
		"text":         {slotPrompt, asPrompt, ""},
		"input_ids":    {slotIDs, asPrompt, ""},
		"input_embeds": {slotEmbeds, asMedia, ""},
		"image_data":   {slotImages, asMedia, ""},
		"audio_data":   {slotAudio, asMedia, ""},
		"video_data":   {slotVideo, asMedia, ""},
	},
	Tokenize:   with(chat, map[string]field{"prompt": {slotPrompt, asPrompt, ""}}),
	Detokenize: {"tokens": {slotPrompt, asPrompt, ""}},
	Score: {
		"text_1":    {slotFirst, asPrompt, ""},
		"queries":   {slotFirstB, asPrompt, ""},
		"query":     {slotFirstC, asPrompt, ""},
		"data_1":    {slotFirstD, asPrompt, ""},
		"text_2":    {slotSecond, asSecond, ""},
		"documents": {slotSecondB, asSecond, ""},
		"items":     {slotSecondC, asSecond, ""},
		"data_2":    {slotSecondD, asSecond, ""},
	},
	Rerank: {
		"query":     {slotFirst, asPrompt, ""},
		"documents": {slotSecond, asSecond, ""},
	},
	Pooling: with(chat, map[string]field{
		"input": {slotPrompt, asPrompt, ""},
		"data":  {slotSecond, asSecond, ""},
	}),
}

func with(base, more map[string]field) map[string]field {
	m := make(map[string]field, len(base)+len(more))
	for k, f := range base {
		m[k] = f
	}
	for k, f := range more {
		m[k] = f
	}
	return m
}

func (p *Parser) top() bool {
	if !p.open() {
		return false
	}
	p.inside, p.rest = p.pos, remains{end: p.pos}
	for first := true; ; first = false {
		key, more, ok := p.member(first)
		if !ok {
			return false
		}
		if !more {
			return true
		}
		name := p.tape.bytes(key)
		f, known := perKind[p.kind][string(name)]
		if !known {
			f, known = common[string(name)]
		}
		gone := p.unwanted(name, f, known)
		switch {
		case !known:
			ok = p.skip()
		case f.how >= asRoot:
			ok = p.control(f)
		default:
			ok = p.promptMember(key, f)
		}
		switch {
		case !ok:
			return false
		case !gone:
			p.retain(&p.rest)
		case !p.cut(&p.rest):
			return false
		}
	}
}

// unwanted reports whether to cut a member: it steers the engine, or a tenant's salt replaces it.
func (p *Parser) unwanted(name []byte, f field, known bool) bool {
	switch {
	case !known:
		return !p.opt.Control && bytes.HasPrefix(name, bootstrapFields)
	case f.how == asSteering:
		return !p.opt.Control
	case f.how == asRoot:
		return len(p.opt.Tenant) > 0 && string(name) == saltMember(p.kind)
	}
	return false
}

// promptMember reads a member into its slot; the last of several wins.
func (p *Parser) promptMember(key op, f field) bool {
	from := p.tape.mark()
	ok := false
	switch f.how {
	case asSetting:
		ok = p.setting(key, markSetting, false)
	case asSorted:
		ok = p.setting(key, markSetting, true)
	case asTail:
		ok = p.setting(key, markTail, false)
	case asMedia:
		ok = p.mediaSetting(key)
	case asChoice:
		ok = p.choice(key)
	case asTools:
		ok = p.list((*Parser).tool)
	case asFunctions:
		ok = p.list((*Parser).function)
	case asSystem:
		ok = p.system()
	case asMessages:
		ok = p.list((*Parser).message)
	case asItems:
		ok = p.items()
	case asPrompt:
		ok = p.prompts()
	case asSecond:
		p.tape.addByte(markSecond)
		at := p.tape.mark()
		if ok = p.prompts(); len(p.tape.ops) == at {
			p.tape.cut(from)
		}
	}
	if !ok {
		return false
	}
	s := p.tape.since(from)
	if f.dflt != "" && p.isSetting(key, s, f.dflt) {
		s = span{}
	}
	p.slots[f.slot] = s
	return true
}

func (p *Parser) isSetting(key op, s span, v string) bool {
	if s.to != s.from+1 {
		return false
	}
	b := p.tape.bytes(p.tape.ops[s.from])
	n := len(b) - len(v)
	return n == int(key.n)+4 && string(b[n:]) == v
}

// setting puts marker, name and JSON on the tape unless empty.
func (p *Parser) setting(key op, mark byte, sorted bool) bool {
	from := p.tape.mark()
	p.tape.addByte(mark)
	p.memberName(key)
	at := p.tape.mark()
	if !p.json(sorted) {
		return false
	}
	if p.isEmpty(at) {
		p.tape.cut(from)
		return true
	}
	p.tape.coalesce(from)
	return true
}

// isEmpty reports whether the JSON after a mark is null, {} or [].
func (p *Parser) isEmpty(at int) bool {
	if len(p.tape.ops) != at+1 {
		return false
	}
	switch string(p.tape.bytes(p.tape.ops[at])) {
	case "null", "{}", "[]":
		return true
	}
	return false
}

func (p *Parser) mediaSetting(key op) bool {
	from := p.tape.mark()
	p.tape.addByte(markSetting)
	p.memberName(key)
	at := p.tape.mark()
	if !p.json(true) {
		return false
	}
	if p.isEmpty(at) {
		p.tape.cut(from)
		return true
	}
	p.media.reset()
	p.feed(p.tape.since(at))
	p.tape.cut(at)
	p.addDigest()
	return true
}

// choice reads tool_choice. "none" or a named tool changes the prompt (SGLang always, vLLM by
// option); other values constrain only the output.
func (p *Parser) choice(key op) bool {
	from := p.tape.mark()
	if !p.setting(key, markSetting, true) {
		return false
	}
	if p.isSetting(key, p.tape.since(from), `"auto"`) || p.isSetting(key, p.tape.since(from), `"required"`) ||
		p.isSetting(key, p.tape.since(from), `"any"`) {
		p.tape.cut(from)
	}
	return true
}

// list reads an array; other values become JSON, null nothing.
func (p *Parser) list(each func(*Parser) bool) bool {
	switch p.peek() {
	case '[':
	case 'n':
		_, ok := p.literal()
		return ok
	default:
		return p.other()
	}
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		more, ok := p.next(']', first)
		if !more || !ok {
			return ok
		}
		p.tape.mark()
		if !each(p) {
			return false
		}
	}
}

// other reads a value of unexpected shape.
func (p *Parser) other() bool {
	p.tape.addByte(markOther)
	return p.json(true)
}

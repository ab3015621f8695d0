package prompt

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"
)

// A second implementation of DESIGN.md's format, over encoding/json.

func mark(c byte) string { return string([]byte{c}) }

func (n *node) other() string { return mark(markOther) + n.json(true) }

func (n *node) field(c byte) string {
	m := ""
	if c != 0 {
		m = mark(c)
	}
	switch {
	case n == nil || n.kind == 'n':
		return ""
	case n.kind == '"':
		return m + canonical(n.text)
	}
	return m + n.other()
}

func (n *node) arguments() string {
	if n == nil || n.kind == '"' {
		return n.field(markArguments)
	}
	return mark(markArguments) + mark(markOther) + n.json(false)
}

// extras renders the unnamed members, sorted, without nulls.
func (n *node) extras(without ...string) string {
	out := ""
next:
	for _, i := range n.order(true) {
		if n.items[i].kind == 'n' {
			continue
		}
		for _, w := range without {
			if n.names[i] == w {
				continue next
			}
		}
		out += `"` + canonical(n.names[i]) + `":` + n.items[i].json(true) + ","
	}
	return out
}

func digestOf(s string) string {
	sum := xxh3.HashString128(s).Bytes()
	return hex.EncodeToString(sum[:])
}

func truthOf(n *node) bool {
	switch {
	case n == nil:
		return false
	case n.kind == '"':
		switch strings.ToLower(n.text) {
		case "true", "t", "1", "on", "y", "yes":
			return true
		}
	case n.kind == '0':
		return n.text == "1" || n.text == "1.0"
	}
	return n.kind == 't'
}

// blank means an empty text.
func (n *node) part(level int) (s string, blank bool) {
	nest := strings.Repeat(mark(markNested), level)
	if n.kind == '"' {
		return nest + mark(markText) + canonical(n.text), n.text == ""
	}
	if n.kind != '{' {
		return nest + n.other(), false
	}
	kind := ""
	if t := n.get("type"); t.is('"') {
		kind = t.text
	}
	isText := func() (string, bool) {
		t := n.get("text")
		if t == nil || t.is('"') && t.text == "" {
			return nest + mark(markText), true
		}
		return nest + t.field(markText), false
	}
	id, useID := n.get("id").field(markID), n.get("tool_use_id").field(markID)
	failed := ""
	if truthOf(n.get("is_error")) {
		failed = mark(markFailed)
	}
	content := n.get("content").content(level+1, false)
	switch kind {
	case "text", "input_text", "output_text", "reasoning_text", "summary_text":
		return isText()
	case "refusal":
		return nest + n.get("refusal").field(markRefusal), false
	case "thinking":
		return nest + n.get("thinking").field(markReasoning), false
	case "tool_use":
		return nest + mark(markCall) + id + n.get("name").field(markName) + n.get("input").arguments(), false
	case "tool_result":
		return nest + mark(markResult) + useID + failed + content, false
	case "":
		if n.get("text") != nil {
			return isText()
		}
	}
	rest := n.get("text").field(markText) + n.get("refusal").field(markRefusal) + n.get("thinking").field(markReasoning) +
		id + useID + n.get("name").field(markName) + failed + n.get("input").arguments() + content
	known := []string{"type", "text", "refusal", "thinking", "id", "tool_use_id", "name", "is_error", "input", "content",
		"cache_control", "signature", "annotations", "logprobs"}
	media := &node{kind: '{'}
	for i, name := range n.names {
		item := n.items[i]
		if (name == "image_url" || name == "audio_url" || name == "video_url") && item.kind == '{' {
			url := ""
			for j := range item.names {
				if item.names[j] == "url" {
					url = item.items[j].json(true)
				}
			}
			item = &node{kind: 'r', text: url + item.extras("url")}
		}
		media.put(name, item)
	}
	for _, i := range media.order(true) {
		if item := media.items[i]; item.kind == 'r' {
			rest += `"` + media.names[i] + `":` + item.text + ","
		} else {
			only := &node{kind: '{', names: media.names[i : i+1], items: media.items[i : i+1]}
			rest += only.extras(known...)
		}
	}
	return nest + mark(markMedia) + canonical(kind) + ":" + digestOf(rest), false
}

func (n *node) content(level int, system bool) string {
	nest := strings.Repeat(mark(markNested), level)
	switch {
	case n == nil || n.kind == 'n':
		return ""
	case n.kind == '"' && n.text == "":
		return ""
	case n.kind == '"':
		return nest + mark(markText) + canonical(n.text)
	case n.kind != '[':
		return nest + n.other()
	}
	out, parts, blank := "", 0, false
	for _, it := range n.items {
		s, b := it.part(level)
		if system && strings.HasPrefix(s, mark(markText)+billing) {
			continue
		}
		out += s
		parts++
		blank = b
	}
	if parts == 1 && blank {
		return ""
	}
	return out
}

func (n *node) list(each func(*node) string) string {
	switch {
	case n == nil:
		return ""
	case n.kind != '[':
		return n.other()
	}
	out := ""
	for _, it := range n.items {
		out += each(it)
	}
	return out
}

func (n *node) call() string {
	if n == nil || n.kind == 'n' {
		return ""
	}
	if n.kind != '{' {
		return mark(markCall) + n.other()
	}
	return mark(markCall) + n.callBody()
}

func (n *node) callBody() string {
	out := n.get("id").field(markID) + n.get("name").field(markName) + n.get("arguments").arguments() + n.get("input").arguments()
	for _, name := range []string{"function", "custom"} {
		if inner := n.get(name); inner.is('{') {
			out += inner.callBody()
		} else {
			out += inner.field(0)
		}
	}
	return out
}

func (n *node) tool(c byte) string {
	if n.kind != '{' {
		return mark(c) + n.other()
	}
	return mark(c) + n.toolBody()
}

func (n *node) toolBody() string {
	kind := ""
	if t := n.get("type"); t != nil && !(t.is('"') && (t.text == "function" || t.text == "")) {
		kind = t.field(markType)
	}
	schema := ""
	for _, name := range []string{"parameters", "input_schema"} {
		if s := n.get(name); s != nil {
			schema += mark(markSchema) + s.json(false)
		}
	}
	in := ""
	if inner := n.get("function"); inner.is('{') {
		in = inner.toolBody()
	} else {
		in = inner.field(0)
	}
	return kind + n.get("name").field(markName) + n.get("description").field(markDescription) + schema + in +
		n.extras("type", "name", "description", "parameters", "input_schema", "function", "cache_control")
}

func (n *node) message() string {
	if n.kind != '{' {
		return mark(markMessage) + n.other()
	}
	reasoning := n.get("reasoning").field(markReasoning)
	if reasoning == "" {
		reasoning = n.get("reasoning_content").field(markReasoning)
	}
	return mark(markMessage) + n.get("role").field(0) + n.get("name").field(markName) + n.get("tool_call_id").field(markID) +
		reasoning + n.get("content").content(0, false) + n.get("refusal").field(markRefusal) + n.get("audio").field(markAudio) +
		n.get("tool_calls").list((*node).call) + n.get("function_call").call()
}

func (n *node) item() string {
	if n.kind != '{' {
		return mark(markMessage) + n.other()
	}
	kind := ""
	if t := n.get("type"); t.is('"') {
		kind = t.text
	}
	id, args := n.get("call_id").field(markID), n.get("arguments").arguments()
	name, output := n.get("name").field(markName), n.get("output").content(0, false)
	content := n.get("content").content(0, false)
	switch kind {
	case "", "message":
		return mark(markMessage) + n.get("role").field(0) + content
	case "function_call":
		return mark(markMessage) + "assistant" + mark(markCall) + id + name + args
	case "function_call_output":
		return mark(markMessage) + "tool" + id + output
	}
	return mark(markMessage) + mark(markType) + canonical(kind) + mark(markType) + n.get("role").field(0) + id + name + args +
		content + output + n.extras("type", "role", "call_id", "name", "arguments", "content", "output", "id", "status")
}

func (n *node) system(anthropic bool) string {
	if s := n.content(0, anthropic); s != "" {
		return mark(markMessage) + "system" + s
	}
	return ""
}

func tokenOf(text string) string {
	if id, err := strconv.ParseUint(text, 10, 32); err == nil && id < 1<<28 && len(text) <= 9 {
		return string([]byte{0x80 | byte(id>>21), 0x80 | byte(id>>14&0x7f), 0x80 | byte(id>>7&0x7f), 0x80 | byte(id&0x7f)})
	}
	return mark(markOther) + canonicalNumber(text) + ","
}

func (n *node) prompts() string {
	switch {
	case n == nil:
		return ""
	case n.kind == '"':
		return n.field(markPrompt)
	case n.kind != '[':
		return n.other()
	}
	out, ids := "", false
	for _, it := range n.items {
		if it.kind == '0' {
			if !ids {
				out += mark(markTokens)
			}
			ids = true
			out += tokenOf(it.text)
			continue
		}
		ids = false
		if it.kind != '[' {
			out += it.promptElement()
			continue
		}
		out += mark(markTokens)
		again := true
		for _, id := range it.items {
			if id.kind == '0' {
				if !again {
					out += mark(markTokens)
				}
				again = true
				out += tokenOf(id.text)
			} else {
				again = true // within one prompt the marker stands once
				out += id.promptElement()
			}
		}
	}
	return out
}

func (n *node) promptElement() string {
	if n.kind == '"' {
		return n.field(markPrompt)
	}
	return n.other()
}

func (n *node) isNone() bool {
	return n == nil || (n.kind == '{' || n.kind == '[') && len(n.items) == 0
}

func setting(c byte, name string, n *node, sorted bool) string {
	if n.isNone() {
		return ""
	}
	return mark(c) + `"` + name + `":` + n.json(sorted)
}

func media(name string, n *node) string {
	if n.isNone() {
		return ""
	}
	return mark(markSetting) + `"` + name + `":` + digestOf(n.json(true))
}

func unless(kind byte, n *node) *node {
	if n.is(kind) {
		return nil
	}
	return n
}

func reference(k Kind, body []byte) ([]byte, error) {
	n, err := parseNode(body)
	if err != nil {
		return nil, err
	}
	if n.kind != '{' {
		return nil, errReference
	}
	var out strings.Builder
	for _, name := range []string{"model", "lora_path", "cache_salt", "extra_key"} {
		out.WriteString(n.get(name).field(0) + "\x00")
	}
	out.WriteString(referenceSettings(k, n))
	conversation := k == Chat || k == Embeddings || k == Tokenize || k == Pooling
	anthropic := k == Messages || k == CountTokens
	if conversation || anthropic || k == Responses {
		out.WriteString(n.get("tools").list(func(n *node) string { return n.tool(markTool) }))
	}
	if conversation {
		out.WriteString(n.get("functions").list(func(n *node) string { return n.tool(markFunction) }))
	}
	switch {
	case anthropic:
		out.WriteString(n.get("system").system(true))
	case k == Responses:
		out.WriteString(n.get("instructions").system(false))
	}
	switch input := n.get("input"); {
	case conversation || anthropic:
		out.WriteString(n.get("messages").list((*node).message))
	case k == Responses && input.is('"'):
		out.WriteString(mark(markMessage) + "user" + input.content(0, false))
	case k == Responses:
		out.WriteString(input.list((*node).item))
	}
	out.WriteString(referencePrompts(k, n))
	if k == Completion {
		out.WriteString(setting(markTail, "suffix", n.get("suffix"), false))
	}
	if conversation {
		out.WriteString(setting(markTail, "continue_final_message", unless('f', n.get("continue_final_message")), false))
		out.WriteString(setting(markTail, "add_generation_prompt", unless('t', n.get("add_generation_prompt")), false))
	}
	return []byte(out.String()), nil
}

func referencePrompts(k Kind, n *node) string {
	out := ""
	first := func(names ...string) {
		for _, name := range names {
			out += n.get(name).prompts()
		}
	}
	embeds := func(name string) { out += media(name, n.get(name)) }
	second := func(names ...string) {
		for _, name := range names {
			if s := n.get(name).prompts(); s != "" {
				out += mark(markSecond) + s
			}
		}
	}
	switch k {
	case Completion:
		first("prompt")
		embeds("prompt_embeds")
	case Embeddings:
		first("input")
	case Tokenize:
		first("prompt")
	case Detokenize:
		first("tokens")
	case Generate:
		first("text", "input_ids")
		embeds("input_embeds")
	case Pooling:
		first("input")
		second("data")
	case Rerank:
		first("query")
		second("documents")
	case Score:
		first("text_1", "queries", "query", "data_1")
		second("text_2", "documents", "items", "data_2")
	}
	return out
}

func referenceSettings(k Kind, n *node) string {
	var out strings.Builder
	set := func(name string, sorted bool) { out.WriteString(setting(markSetting, name, n.get(name), sorted)) }
	conversation := k == Chat || k == Embeddings || k == Tokenize || k == Pooling
	anthropic := k == Messages || k == CountTokens
	if conversation {
		set("chat_template", false)
	}
	if conversation || anthropic || k == Responses {
		set("chat_template_kwargs", true)
	}
	if conversation {
		set("documents", false)
	}
	switch {
	case conversation || k == Responses:
		set("reasoning", true)
	case anthropic:
		set("thinking", true)
	}
	if conversation {
		set("reasoning_effort", false)
	}
	set("mm_processor_kwargs", true)
	set("truncate_prompt_tokens", false)
	switch {
	case conversation:
		out.WriteString(setting(markSetting, "add_special_tokens", unless('f', n.get("add_special_tokens")), false))
	case k == Completion:
		out.WriteString(setting(markSetting, "add_special_tokens", unless('t', n.get("add_special_tokens")), false))
	}
	if k == Responses {
		set("previous_response_id", false)
		set("prompt", true)
	}
	if conversation || anthropic || k == Responses {
		if c := n.get("tool_choice"); !c.is('"') || c.text != "auto" && c.text != "required" && c.text != "any" {
			set("tool_choice", true)
		}
	}
	if k == Generate {
		for _, name := range []string{"image_data", "audio_data", "video_data"} {
			out.WriteString(media(name, n.get(name)))
		}
	}
	return out.String()
}

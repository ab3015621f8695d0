package prompt

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
)

var seedBodies = []struct {
	kind Kind
	body string
}{
	{Chat, `{"model":"m","messages":[{"role":"system","content":"be nice"},{"role":"user","content":"hi"}]}`},
	{Chat, `{"messages":[{"content":[{"text":"a\u00e9\ud83d\ude00\/\n","type":"text"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},"b"],"role":"user"}],"model":"a\/b"}`},
	{Chat, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"arguments":"{}","name":"f"}}],"reasoning_content":"r"},{"role":"tool","tool_call_id":"c","content":[]}],"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":{"b":1.50,"a":[1e3,-0,true,{}],"b":2},"strict":true}}],"tool_choice":"auto"}`},
	{Chat, `{"functions":[{"name":"f"}],"messages":[{"role":"assistant","function_call":{"name":"f","arguments":{"x":1}},"refusal":"no","audio":{"id":"a"},"name":"n"}],"chat_template_kwargs":{"b":1,"a":[]},"documents":[{"t":"x"}],"add_generation_prompt":false,"continue_final_message":true,"tool_choice":{"type":"function","function":{"name":"f"}},"cache_salt":"s","lora_path":["a","b"]}`},
	{Chat, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}},{"type":"text","text":""},{"type":"refusal","refusal":"x"},{"type":"video_url","video_url":{"fps":1,"url":"u"},"uuid":"7"},5]}],"messages":null}`},
	{Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + strings.Repeat(`data\/`, 900) + `"}}]}]}`},
	{Completion, `{"model":"m","prompt":"once","suffix":"end","add_special_tokens":false}`},
	{Completion, `{"prompt":["a","b"],"prompt_embeds":["AA=="]}`},
	{Completion, `{"prompt":[1,2,300000000,-1,1.5]}`},
	{Completion, `{"prompt":[[1,2],[3],["x"],4,{"a":1}]}`},
	{Responses, `{"input":"q","instructions":"i","reasoning":{"effort":"low"},"tools":[{"type":"function","name":"f","parameters":{}},{"type":"web_search"}]}`},
	{Responses, `{"input":[{"role":"user","content":[{"type":"input_text","text":"q"},{"type":"input_image","image_url":"u"}]},{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"s"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}","id":"x","status":"completed"},{"type":"function_call_output","call_id":"c","output":"42"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}]}],"previous_response_id":"p"}`},
	{Embeddings, `{"input":["a","b"],"model":"e"}`},
	{Embeddings, `{"messages":[{"role":"user","content":"x"}]}`},
	{Messages, `{"model":"c","max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"u","name":"f","input":{"b":1,"a":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","is_error":true,"content":[{"type":"text","text":"r"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QQ=="}}]},{"type":"text","text":"go"}]}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{}}],"thinking":{"type":"enabled","budget_tokens":9}}`},
	{CountTokens, `{"system":"s","messages":[{"role":"user","content":"x"}]}`},
	{Generate, `{"text":"t","image_data":["u"],"sampling_params":{"max_new_tokens":3},"lora_path":"l"}`},
	{Generate, `{"input_ids":[[1,2],[3]],"input_embeds":[[0.5]],"session_params":{"id":"s"}}`},
	{Tokenize, `{"prompt":"p","add_special_tokens":true}`},
	{Detokenize, `{"tokens":[1,2,3]}`},
	{Score, `{"text_1":"a","text_2":["b","c"]}`},
	{Rerank, `{"query":"q","documents":["a",{"text":"b"}],"top_n":1}`},
	{Pooling, `{"input":"x","data":{"a":1}}`},
	{Chat, `{"messages":[{"role":"user","content":"\ud800"}]}`},
	{Chat, `{"messages":[{"role":"user","content":"` + "\xff" + `"}]}`},
	{Chat, `{"temperature":NaN}`},
	{Chat, `{"a":1,}`},
	{Chat, `[]`},
	{Chat, ``},
	{Chat, `{"a":"\x"}`},
	{Chat, `{"a":01}`},
	{Chat, `{} x`},
	{Chat, ` { "model" : "m" , "messages" : [ ] , "tools" : { } , "truncate_prompt_tokens" : 5 } `},
}

func FuzzPromptBytes(f *testing.F) {
	for _, s := range seedBodies {
		f.Add(uint8(s.kind), []byte(s.body))
	}
	p := newTestParser(f)
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		checkAgainstReference(t, p, Kind(kind%uint8(kinds-1))+1, body)
	})
}

// failer is common to *testing.T and *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func checkAgainstReference(t failer, p *Parser, k Kind, body []byte) {
	t.Helper()
	got, err := p.PromptBytes(k, body)
	want, refErr := reference(k, body)
	if (err != nil) != (refErr != nil) {
		t.Fatalf("%v %q: error %v, reference %v", k, body, err, refErr)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(body) || e.Reason == "" {
			t.Fatalf("%v %q: bad error %#v", k, body, err)
		}
		return
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%v %q:\ngot  %q\nwant %q", k, body, got, want)
	}
	var r Request
	if err := p.Parse(k, body, Options{Control: true}, &r); err != nil {
		t.Fatalf("%v %q: PromptBytes succeeded, Parse: %v", k, body, err)
	}
	parts := bytes.Split(got, []byte{0})
	if len(parts) != rootCount+1 {
		t.Fatalf("%v %q: %d zero bytes", k, body, len(parts)-1)
	}
	var c prefixtree.Chain
	c.Reset(p.hasher)
	for _, root := range parts[:rootCount] {
		c.Root(root)
	}
	c.Write(parts[rootCount])
	if !slices.Equal(c.Hashes(), r.Hashes) || c.Len() != r.PromptBytes {
		t.Fatalf("%v %q: hashes are not those of the prompt bytes", k, body)
	}
}

func TestReference(t *testing.T) {
	p := newTestParser(t)
	for _, s := range seedBodies {
		for k := Other + 1; k < kinds; k++ {
			checkAgainstReference(t, p, k, []byte(s.body))
		}
	}
}

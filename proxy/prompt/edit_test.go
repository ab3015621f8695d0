package prompt

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func FuzzUsageEdit(f *testing.F) {
	for _, s := range usageBodies {
		f.Add(s)
	}
	p := newTestParser(f)
	f.Fuzz(func(t *testing.T, body string) { checkUsage(t, p, body) })
}

var usageBodies = []string{
	`{"stream":true}`,
	` {  } `,
	`{"stream":true,"messages":[]}`,
	"{\n \"stream\": true ,\n \"stream_options\" : null }",
	`{"stream":true,"stream_options":{}}`,
	`{"stream":true,"stream_options":{ "x":1 }}`,
	`{"stream":true,"stream_options":{"include_usage":false}}`,
	`{"stream":true,"stream_options":{"include_usage":true}}`,
	`{"stream":true,"stream_options":{"include_usage":true,"include_usage":false , "a":[]}}`,
	`{"stream_options":{"include_usage":true},"stream":true,"stream_options":{"b":{}}}`,
	`{"stream":true,"stream_options":{"include_usage":true},"stream_options":null}`,
	`{"stream":true,"stream_options":null,"stream_options":{"include_usage":null}}`,
	`{"stream":true,"stream\u005foptions":{"include\u005fusage":false}}`,
	`{"stream":true,"stream_options":[]}`,
	`{"stream":true,"stream_options":"x"}`,
	`{"stream":false,"stream_options":{}}`,
	`{"stream":true,"stream_options":{"continuous_usage_stats":true}}`,
	`{"stream":true,"stream_options":{"include_usage":{"a":1}}}`,
	`{"stream":true,"x":{"stream_options":{}}}`,
	`{"stream":true,"stream":true,"stream_options":{"include_usage":"no"}`,
}

func TestUsageEdit(t *testing.T) {
	p := newTestParser(t)
	for _, s := range usageBodies {
		checkUsage(t, p, s)
	}
	for _, c := range [][2]string{
		{`{"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`},
		{`{"stream":true,"stream_options":{ "x":1 }}`, `{"stream":true,"stream_options":{"include_usage":true, "x":1 }}`},
		{`{"stream":true,"stream_options":{"include_usage": false }}`, `{"stream":true,"stream_options":{"include_usage": true }}`},
		{`{"stream":true,"stream_options": null}`, `{"stream":true,"stream_options": {"include_usage":true}}`},
		{`{"stream":true,"stream_options":{}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
	} {
		var r Request
		if err := p.Parse(Completion, []byte(c[0]), Options{}, &r); err != nil {
			t.Fatal(err)
		}
		if got := string(apply(nil, []byte(c[0]), r.Edits)); got != c[1] {
			t.Errorf("%s\ngot  %s\nwant %s", c[0], got, c[1])
		}
	}
	var r Request
	for _, k := range []Kind{Responses, Messages, Embeddings, Generate, Other} {
		_ = p.Parse(k, []byte(`{"stream":true}`), Options{}, &r)
		if r.UsageAdded || len(r.Edits) > 0 {
			t.Errorf("%v: asks for usage", k)
		}
	}
}

// The last of several members wins.
func membersOf(raw []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

func truth(raw json.RawMessage) bool {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return false
	}
	switch v := v.(type) {
	case bool:
		return v
	case string:
		switch strings.ToLower(v) {
		case "true", "t", "1", "on", "y", "yes":
			return true
		}
	case float64:
		return string(raw) == "1" || string(raw) == "1.0"
	}
	return false
}

func checkUsage(t *testing.T, p *Parser, body string) {
	t.Helper()
	for _, k := range []Kind{Chat, Completion} {
		var r Request
		err := p.Parse(k, []byte(body), Options{Control: true}, &r)
		out := apply(nil, []byte(body), r.Edits)
		if err != nil {
			if string(out) != body {
				t.Fatalf("%q: not understood, but edited to %q", body, out)
			}
			continue
		}
		before, after := membersOf([]byte(body)), membersOf(out)
		if before == nil || after == nil {
			t.Fatalf("%q -> %q: not an object", body, out)
		}
		options := before["stream_options"]
		in := membersOf(options)
		isObject := len(options) > 0 && options[0] == '{'
		asked := isObject && truth(in["include_usage"])
		if p.ctl.usage != asked {
			t.Fatalf("%q: asked %v", body, p.ctl.usage)
		}
		may := len(options) == 0 || isObject || string(options) == "null"
		edit := truth(before["stream"]) && !asked && may && !(isObject && truth(in["continuous_usage_stats"]))
		if edit != r.UsageAdded {
			t.Fatalf("%q: edited %v, want %v", body, r.UsageAdded, edit)
		}
		if !edit {
			if string(out) != body {
				t.Fatalf("%q: edited to %q", body, out)
			}
			continue
		}
		got := membersOf(after["stream_options"])
		if string(got["include_usage"]) != "true" {
			t.Fatalf("%q -> %q: not in effect", body, out)
		}
		// Everything else keeps its meaning.
		delete(got, "include_usage")
		delete(in, "include_usage")
		delete(before, "stream_options")
		delete(after, "stream_options")
		if !sameMembers(got, in) || !sameMembers(before, after) {
			t.Fatalf("%q -> %q: changes more", body, out)
		}
		head := 0
		for head < len(body) && head < len(out) && body[head] == out[head] {
			head++
		}
		tail := 0
		for tail < len(body)-head && tail < len(out)-head && body[len(body)-1-tail] == out[len(out)-1-tail] {
			tail++
		}
		if len(out)-head-tail > len(`"stream_options":{"include_usage":true},`) {
			t.Fatalf("%q -> %q: replaces %q", body, out, body[head:len(body)-tail])
		}
	}
}

func sameMembers(a, b map[string]json.RawMessage) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if !bytes.Equal(v, b[k]) {
			return false
		}
	}
	return true
}

func apply(dst, body []byte, edits []Edit) []byte {
	at := 0
	for _, e := range edits {
		dst = append(append(dst, body[at:e.From]...), e.Text...)
		at = e.To
	}
	return append(dst, body[at:]...)
}

var steeringBodies = []string{
	`{"kv_transfer_params":{"remote_host":"10.0.0.1"}}`,
	`{"a":1,"kv_transfer_params":{}}`,
	`{"kv_transfer_params":{} , "a":1}`,
	`{"a":1,"bootstrap_host":"x","bootstrap_port":[1],"bootstrap_room":7,"b":2}`,
	`{"bootstrap_host":"x","ec_transfer_params":null,"a":1,"routed_dp_rank":3}`,
	`{"a":1,"data_parallel_rank":1,"b":2,"disagg_prefill_dp_rank":2}`,
	`{"kv\u005ftransfer_params":1,"boot\u0073trap_room":[{"}":","}]}`,
	`{"vllm_xargs":{"kv_cache_report_mode":"full","x":[1,2]},"a":1}`,
	`{"vllm_xargs":{"x":1,"kv_cache_report_mode":"full","kv_transfer_params":{"a":1}}}`,
	`{"vllm_xargs":{"kv_cache_report_mode":"full"},"vllm_xargs":null}`,
	`{"stream":true,"kv_transfer_params":1}`,
	`{"kv_transfer_params":1,"stream":true,"bootstrap_room":2,"stream_options":{"a":1},"bootstrap_room":3}`,
	`{"kv_transfer_params":1,"kv_transfer_params":2,"messages":[{"kv_transfer_params":5}]}`,
	`{"cache_salt":"mine","messages":[],"cache_salt":"mine too","stream":true}`,
	`{"cache_salt":"mine"}`,
	` { "extra_key" : [ "a" ] , "text" : "t" } `,
	`{}`,
}

func FuzzEdits(f *testing.F) {
	for _, s := range steeringBodies {
		f.Add(s)
	}
	p := newTestParser(f)
	f.Fuzz(func(t *testing.T, body string) { checkEdits(t, p, body) })
}

func TestSteeringMembersAreCut(t *testing.T) {
	p := newTestParser(t)
	for _, s := range append(steeringBodies, usageBodies...) {
		checkEdits(t, p, s)
	}
	for _, c := range [][2]string{
		{`{"a":1,"kv_transfer_params":{"b":[1,2]} ,"c":3}`, `{"a":1 ,"c":3}`},
		{`{"kv_transfer_params":1,"bootstrap_room":2,"a":3,"routed_dp_rank":4}`, `{"a":3}`},
		{`{"kv_transfer_params":1,"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`},
		{`{"vllm_xargs":{"a":1,"kv_cache_report_mode":"full"}}`, `{"vllm_xargs":{"a":1}}`},
	} {
		var r Request
		if err := p.Parse(Completion, []byte(c[0]), Options{}, &r); err != nil {
			t.Fatal(err)
		}
		if got := string(apply(nil, []byte(c[0]), r.Edits)); got != c[1] {
			t.Errorf("%s\ngot  %s\nwant %s", c[0], got, c[1])
		}
	}
	var r Request
	crowd := "{" + strings.Repeat(`"a":1,"bootstrap_room":2,`, maxEdits+1) + `"b":3}`
	if err := p.Parse(Chat, []byte(crowd), Options{}, &r); err == nil || len(r.Edits) > 0 {
		t.Errorf("a body with %d edits: %v", len(r.Edits), err)
	}
}

func steering(name string) bool {
	switch name {
	case "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "data_parallel_rank", "data_parallel_rank_decode",
		"routed_dp_rank", "disagg_prefill_dp_rank", "decode_tp_size":
		return true
	}
	return strings.HasPrefix(name, "bootstrap_")
}

func withoutSteering(m map[string]json.RawMessage) map[string]json.RawMessage {
	for name := range m {
		if steering(name) {
			delete(m, name)
		}
	}
	if inner := membersOf(m["vllm_xargs"]); inner != nil {
		for name := range inner {
			if steering(name) {
				delete(inner, name)
			}
		}
		m["vllm_xargs"], _ = json.Marshal(inner)
	}
	return m
}

func checkEdits(t *testing.T, p *Parser, body string) {
	t.Helper()
	for _, k := range []Kind{Chat, Completion, Responses, Messages, Generate, Embeddings} {
		for _, tenant := range []string{"", "a", "b"} {
			var r Request
			if p.Parse(k, []byte(body), Options{Tenant: []byte(tenant)}, &r) != nil {
				if len(r.Edits) > 0 {
					t.Fatalf("%q: not understood, but edited", body)
				}
				continue
			}
			out := apply(nil, []byte(body), r.Edits)
			before, after := withoutSteering(membersOf([]byte(body))), membersOf(out)
			if after == nil {
				t.Fatalf("%v %q -> %q: not an object", k, body, out)
			}
			for name := range after {
				if steering(name) {
					t.Fatalf("%v %q -> %q: has %s", k, body, out, name)
				}
			}
			if salt := saltMember(k); tenant != "" && salt != "" {
				if len(after[salt]) != 34 || bytes.Contains(after[salt], []byte("mine")) {
					t.Fatalf("%v %q -> %q: no salt, or the client's", k, body, out)
				}
				delete(before, salt)
				delete(after, salt)
			}
			if r.UsageAdded {
				delete(before, "stream_options")
				delete(after, "stream_options")
			}
			if inner := membersOf(after["vllm_xargs"]); inner != nil {
				after["vllm_xargs"], _ = json.Marshal(inner)
			}
			if !sameMembers(before, after) {
				t.Fatalf("%v %q -> %q: changes more", k, body, out)
			}
		}
	}
}

// Other tenants or salts give other hashes; the sent body, parsed without a tenant, gives the
// request's.
func TestTenantsShareNothing(t *testing.T) {
	text := strings.Repeat("all work and no play ", 100)
	for k, body := range map[Kind]string{
		Chat:       `{"messages":[{"role":"user","content":"` + text + `"}]}`,
		Completion: `{"prompt":"` + text + `"}`,
		Responses:  `{"input":"` + text + `"}`,
		Messages:   `{"messages":[{"role":"user","content":"` + text + `"}]}`,
		Generate:   `{"text":"` + text + `"}`,
		Embeddings: `{"input":"` + text + `"}`,
	} {
		p := newTestParser(t)
		seen := map[any]string{}
		for _, tenant := range []string{"", "a", "b"} {
			for _, own := range []string{"", "x", "y"} {
				in := body
				if name := saltMember(k); name != "" && own != "" {
					in = `{"` + name + `":"` + own + `",` + body[1:]
				} else if own != "" {
					in = `{"cache_salt":"` + own + `",` + body[1:]
				}
				var r, again Request
				if err := p.Parse(k, []byte(in), Options{Tenant: []byte(tenant)}, &r); err != nil || len(r.Hashes) == 0 {
					t.Fatal(err)
				}
				first, who := r.Hashes[0], tenant+"/"+own
				if other, dup := seen[first]; dup {
					t.Errorf("%v: %s shares with %s", k, who, other)
				}
				seen[first] = who
				if saltMember(k) == "" {
					continue
				}
				sent := apply(nil, []byte(in), r.Edits)
				if err := p.Parse(k, sent, Options{}, &again); err != nil || again.Hashes[0] != first {
					t.Errorf("%v %s: sent %.80q, which hashes otherwise: %v", k, who, sent, err)
				}
			}
		}
	}
}

func TestResponsesAreNamed(t *testing.T) {
	const room = `"request_id":"` + noResponseID + `"`
	p := newTestParser(t)
	for _, c := range []struct {
		name       string
		kind       Kind
		o          Options
		body, want string
		previous   string
	}{
		{"first", Responses, Options{NameResponse: true}, `{"input":"a"}`, `{` + room + `,"input":"a"}`, ""},
		{"follow-up", Responses, Options{NameResponse: true}, `{"previous_response_id":"resp_1"}`, `{` + room + `,"previous_response_id":"resp_1"}`, "resp_1"},
		{"nothing", Responses, Options{NameResponse: true}, ` { } `, ` {` + room + ` } `, ""},
		{"the client's", Responses, Options{NameResponse: true}, `{"request_id":"mine","input":"a", "request_id":7}`, `{` + room + `,"input":"a"}`, ""},
		{"the client's stays", Responses, Options{NameResponse: true, Control: true}, `{"request_id":"mine"}`, `{"request_id":"mine"}`, ""},
		{"with control", Responses, Options{NameResponse: true, Control: true}, `{"input":"a"}`, `{` + room + `,"input":"a"}`, ""},
		{"not asked", Responses, Options{}, `{"request_id":"mine","previous_response_id":null}`, `{"request_id":"mine","previous_response_id":null}`, ""},
		{"no text", Responses, Options{}, `{"previous_response_id":["resp_1"]}`, `{"previous_response_id":["resp_1"]}`, ""},
		{"the last", Responses, Options{}, `{"previous_response_id":"a","previous_response_id":"b"}`, `{"previous_response_id":"a","previous_response_id":"b"}`, "b"},
		{"another kind", Chat, Options{NameResponse: true}, `{"request_id":"mine","previous_response_id":"a"}`, `{"request_id":"mine","previous_response_id":"a"}`, ""},
	} {
		var r Request
		if err := p.Parse(c.kind, []byte(c.body), c.o, &r); err != nil {
			t.Fatal(err)
		}
		if got := string(apply(nil, []byte(c.body), r.Edits)); got != c.want || string(r.Previous) != c.previous {
			t.Errorf("%s: %s, previous %q\nwant %s", c.name, got, r.Previous, c.want)
		}
		if strings.Contains(c.want, room) != (r.ResponseID >= 0) || r.ResponseID >= 0 && string(r.Edits[0].Text[r.ResponseID:][:ResponseIDLen]) != noResponseID {
			t.Errorf("%s: the id goes to %d of %+v", c.name, r.ResponseID, r.Edits)
		}
	}
}

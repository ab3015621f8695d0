package prompt

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzAppendWithUsage holds the edit against encoding/json.
func FuzzAppendWithUsage(f *testing.F) {
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

func TestAppendWithUsage(t *testing.T) {
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
		if err := p.Parse(Completion, []byte(c[0]), &r); err != nil {
			t.Fatal(err)
		}
		if got := string(r.AppendWithUsage([]byte("dst"), []byte(c[0]))); got != "dst"+c[1] {
			t.Errorf("%s\ngot  %s\nwant %s", c[0], got, c[1])
		}
	}
	var r Request
	for _, k := range []Kind{Responses, Messages, Embeddings, Generate, Other} {
		_ = p.Parse(k, []byte(`{"stream":true}`), &r)
		if r.UsageEdited() {
			t.Errorf("%v: asks for usage", k)
		}
	}
}

// members reads an object's members, the last of several.
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
		err := p.Parse(k, []byte(body), &r)
		out := r.AppendWithUsage(nil, []byte(body))
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
		if r.UsageAsked != asked {
			t.Fatalf("%q: asked %v", body, r.UsageAsked)
		}
		may := len(options) == 0 || isObject || string(options) == "null"
		edit := truth(before["stream"]) && !asked && may && !(isObject && truth(in["continuous_usage_stats"]))
		if edit != r.UsageEdited() {
			t.Fatalf("%q: edited %v, want %v", body, r.UsageEdited(), edit)
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
		// Everything else means what it did, and is at most one piece of text away.
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

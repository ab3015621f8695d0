package prompt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"grapevine.example/prefixtree"
)

// An alias gives the prompt bytes and the body that a client would have sent for the model itself.
func TestAliases(t *testing.T) {
	const rest = `"messages":[{"role":"user","content":"a prompt of several blocks, hashed under the model of the engine"}]`
	for name, body := range map[string]string{
		"first":         `{"model":"gpt","stream":true,` + rest + `}`,
		"last":          `{` + rest + `,"stream":true, "model" : "gpt" }`,
		"escaped":       `{"model":"g\u0070t",` + rest + `}`,
		"twice":         `{"model":"x",` + rest + `,"model":"gpt"}`,
		"null":          `{"model":null,` + rest + `}`,
		"absent":        `{` + rest + `}`,
		"with options":  `{"stream":true,"model":"gpt","stream_options":{},` + rest + `}`,
		"steering":      `{"kv_transfer_params":{},"model":"gpt",` + rest + `,"bootstrap_room":4}`,
		"only steering": `{"kv_transfer_params":{}}`,
	} {
		for _, tenant := range []string{"", "t"} {
			h := hasher(t)
			o := Options{Tenant: []byte(tenant), NameResponse: true, Split: true}
			asked := []byte("unset")
			o.Follow = func(r *Request) []byte {
				asked = bytes.Clone(r.Model)
				return []byte("qwen/3-8b")
			}
			p := NewParser(h)
			var r Request
			if err := p.Parse(Chat, []byte(body), o, &r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			named := "gpt"
			if name == "null" || name == "absent" || name == "only steering" {
				named = ""
			}
			if string(asked) != named {
				t.Errorf("%s: the client asks for %q, want %q", name, asked, named)
			}
			sent := string(apply(nil, []byte(body), r.Edits))
			var got struct{ Model string }
			if err := json.Unmarshal([]byte(sent), &got); err != nil || got.Model != "qwen/3-8b" {
				t.Errorf("%s: engines get %s: %v", name, sent, err)
			}
			if r.Splits {
				if err := json.Unmarshal(apply(nil, []byte(body), r.Prefill), &got); err != nil || got.Model != "qwen/3-8b" {
					t.Errorf("%s: prefill engines get %s: %v", name, apply(nil, []byte(body), r.Prefill), err)
				}
			}
			hashes := slices.Clone(r.Hashes)
			o.Follow = nil
			var direct Request
			if err := NewParser(h).Parse(Chat, []byte(withModel(t, body, "qwen/3-8b")), o, &direct); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(hashes, direct.Hashes) || r.PromptBytes != direct.PromptBytes {
				t.Errorf("%s: another prompt than that of the model itself", name)
			}
		}
	}
}

func withModel(t *testing.T, body, model string) string {
	t.Helper()
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		t.Fatal(err)
	}
	members["model"], _ = json.Marshal(model)
	text, _ := json.Marshal(members)
	return string(text)
}

// Members that rules name are read if they are no part of the prompt.
func TestMembers(t *testing.T) {
	o := Options{Members: []string{"chat", "messages", "n", "user"}}
	for body, want := range map[string]string{
		`{"chat":"c\u0031","user":"u","n":12,"messages":[]}`:     `["c1" "" "12" "u"]`,
		`{"chat":{"a":"b"},"user":null,"n":true,"messages":"x"}`: `["" "" "" ""]`,
		`{"chat":"a","chat":"b","other":"c"}`:                    `["b" "" "" ""]`,
		`{}`:                                                     `["" "" "" ""]`,
	} {
		p := NewParser(hasher(t))
		var r Request
		for range 2 { // the parser is used again
			if err := p.Parse(Chat, []byte(body), o, &r); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%q", r.Members); got != want {
				t.Errorf("%s: %s, want %s", body, got, want)
			}
		}
	}
}

func hasher(t *testing.T) *prefixtree.Hasher {
	t.Helper()
	h, err := prefixtree.NewHasher([]byte("secret"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

package config

import (
	"slices"
	"strings"
	"testing"

	"grapevine.example/proxy/clients"
)

var (
	hashA = strings.Repeat("aa", 32)
	hashB = strings.Repeat("bb", 32)
)

func TestParseClients(t *testing.T) {
	book, err := ParseClients("clients.yaml", []byte(`
clients:
  - {name: search, key_sha256: `+hashA+`, models: ["llama*"], paths: [/v1/chat/completions], priority: default, weight: 4, tokens_per_minute: 2M, in_flight: 400}
  - name: ops
    key_sha256: [`+hashB+`, `+strings.Repeat("cc", 32)+`]
    trusted: true
  - {name: public, in_flight: 10}
anonymous: public
`))
	if err != nil {
		t.Fatal(err)
	}
	s, ops, public := book.Clients[0], book.Clients[1], book.Clients[2]
	if s.Name != "search" || s.Priority != clients.Default || s.Weight != 4 || s.TokensPerMinute != 2e6 || s.InFlight != 400 || s.Trusted ||
		!s.MayUseModel([]byte("llama-70b")) || s.MayUseModel([]byte("gpt")) || s.MayUsePath([]byte("/v1/messages")) {
		t.Errorf("%+v", s)
	}
	if len(ops.Keys) != 2 || !ops.Trusted || ops.Weight != 1 || ops.Priority != clients.Interactive || !ops.MayUseModel(nil) || !ops.MayUsePath([]byte("/x")) {
		t.Errorf("%+v", ops)
	}
	if book.Anonymous != public {
		t.Errorf("anonymous is %+v", book.Anonymous)
	}
	if book, err := ParseClients("f", []byte("clients: []\nanonymous: refuse\n")); err != nil || book.Anonymous != nil || len(book.Clients) != 0 {
		t.Errorf("%+v, %v", book, err)
	}
}

func TestClientMistakes(t *testing.T) {
	const good = "anonymous: refuse\n"
	for _, c := range []struct{ text, want string }{
		{"", "f: is empty: write clients: []"},
		{"clients: []\n", "f:1: anonymous: is missing: write refuse, or"},
		{good + "clients: 3\n", "f:2: clients: not a list: write - {name: NAME"},
		{good + "client: []\n", "f:2: client: unknown key: did you mean clients?"},
		{good + "clients:\n - {name: a, key_sha265: x}\n", "f:3: clients[0].key_sha265: unknown key: did you mean key_sha256?"},
		{good + "clients:\n - name: a\n   key_sha256: sk-secret\n", "f:4: clients[0].key_sha256: is not the SHA-256 of a key"},
		{good + "clients:\n - name: a\n   key_sha256: [" + hashA + ", aabb]\n", "f:4: clients[0].key_sha256: is not the SHA-256 of a key"},
		{good + "clients:\n - name: a\n", "f:3: clients[0].key_sha256: a has no key: add the hash that grapevine clients new prints"},
		{good + "clients:\n - {key_sha256: " + hashA + "}\n", "f:3: clients[0].name: is missing"},
		{good + "clients:\n - {name: a b, key_sha256: " + hashA + "}\n", `clients[0].name: "a b" is not one word`},
		{good + "clients:\n - {name: refuse, key_sha256: " + hashA + "}\n", "clients[0].name: refuse is what anonymous says"},
		{good + "clients:\n - {name: a, key_sha256: " + hashA + "}\n - {name: a, key_sha256: " + hashB + "}\n", "f:4: clients[1].name: client 1 is called a, too"},
		{good + "clients:\n - {name: a, key_sha256: " + hashA + "}\n - {name: b, key_sha256: " + hashA + "}\n", "f:4: clients[1].key_sha256: a has the same key"},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   weight: 0\n", "f:5: clients[0].weight: 0 is not above 0"},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   weight: .nan\n", "clients[0].weight: NaN is not above 0"},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   tokens_per_minute: 2.5\n", `f:5: clients[0].tokens_per_minute: "2.5" is not a whole number: write 20000, 20k or 2M`},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   in_flight: -3\n", "f:5: clients[0].in_flight: -3 is negative"},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   priority: high\n", `f:5: clients[0].priority: "high" is none of batch, default, interactive`},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   models: [\"a*b\"]\n", `clients[0].models: "a*b" is neither a name nor PREFIX*`},
		{good + "clients:\n - name: a\n   key_sha256: " + hashA + "\n   paths: [v1]\n", `clients[0].paths: "v1" does not begin with /`},
		{"anonymous: guest\nclients: []\n", `f:1: anonymous: there is no client "guest"`},
		{good + "clients: []\n---\nx: 1\n", "more than one YAML document"},
	} {
		_, err := ParseClients("f", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "sk-secret") {
			t.Errorf("the error repeats what may be a key: %v", err)
		}
	}
}

// A file's mistakes come together, in its order, each with its line and what to write instead. What only follows from another one is left
// out, and what may be a key is not repeated.
func TestAllClientMistakesAtOnce(t *testing.T) {
	text := `anonymous: guest
client: []
clients:
  - {name: a b, key_sha256: ` + hashA + `}
  - name: twice
    key_sha256: sk-secret
    weight: -1
    priority: high
  - name: twice
    key_sha265: ` + hashB + `
    in_flight: 1.5
    models: ["a*b", ""]
  - just a word
  - {name: same, key_sha256: ` + hashA + `, tokens_per_minute: -2k, paths: [v1]}
  - {weight: 1001}
`
	want := []string{
		`f:1: anonymous: there is no client "guest": write refuse, or the name of a client`,
		`f:2: client: unknown key: did you mean clients?`,
		`f:4: clients[0].name: "a b" is not one word of at most 64 visible ASCII characters: write one such as search-eu`,
		`f:6: clients[1].key_sha256: is not the SHA-256 of a key, 64 hexadecimal digits: write what grapevine clients new prints, never the key itself`,
		`f:7: clients[1].weight: -1 is not above 0 and at most 1000: write 2 for twice the share of others, or leave it out for 1`,
		`f:8: clients[1].priority: "high" is none of batch, default, interactive: write one of them, or leave it out for interactive`,
		`f:9: clients[2].name: client 2 is called twice, too: choose another name`,
		`f:10: clients[2].key_sha265: unknown key: did you mean key_sha256?`,
		`f:11: clients[2].in_flight: "1.5" is not a whole number: write 20000, 20k or 2M`,
		`f:12: clients[2].models: "a*b" is neither a name nor PREFIX*: write * at the end only, or leave models out for all`,
		`f:12: clients[2].models: "" is neither a name nor PREFIX*: write * at the end only, or leave models out for all`,
		`f:13: clients[3]: not a mapping: write KEY: VALUE lines`,
		`f:14: clients[4].tokens_per_minute: -2000 is negative: leave it out for no limit`,
		`f:14: clients[4].paths: "v1" does not begin with /: write it as in /v1/chat/completions, or leave paths out for all`,
		`f:14: clients[4].key_sha256: a b has the same key: make another one by grapevine clients new`,
		`f:15: clients[5].name: is missing: write one word, which labels metrics and logs`,
		`f:15: clients[5].weight: 1001 is not above 0 and at most 1000: write 2 for twice the share of others, or leave it out for 1`,
		`f:15: clients[5].key_sha256: the client has no key: add the hash that grapevine clients new prints`,
	}
	book, err := ParseClients("f", []byte(text))
	if err == nil || book != nil {
		t.Fatalf("%v, %v", book, err)
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, m := range Mistakes(err) {
		if m.Line == 0 || m.Reason == "" {
			t.Errorf("%+v has no line, or no reason", m)
		}
	}
	// Without anonymous, a client without a key may be meant.
	_, err = ParseClients("f", []byte("clients:\n  - {name: public}\n"))
	if err == nil || len(Mistakes(err)) != 1 || Mistakes(err)[0].Key != "anonymous" {
		t.Errorf("%v", err)
	}
}

func TestAmounts(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "12": 12, "20k": 20_000, "2M": 2_000_000, "1.5M": 1_500_000, "3G": 3_000_000_000} {
		var a amount
		if err := a.UnmarshalText([]byte(text)); err != nil || int64(a) != want {
			t.Errorf("%s: %d, %v", text, a, err)
		}
	}
	for _, text := range []string{"", "k", "1.5", "1e400", "2m", "2kM", "2MkG", "NaN"} {
		var a amount
		if err := a.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as %d", text, a)
		}
	}
}

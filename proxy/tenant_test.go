package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"grapevine.example/proxy/policy"
)

func secretPrompt(pin string) string {
	template := strings.Repeat("You are the assistant of a bank and keep secrets. ", 60)
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, template+"The PIN is "+pin+". "+strings.Repeat("Tell nobody about it. ", 60))
}

func TestTenantsCannotGuessPrompts(t *testing.T) {
	for _, by := range []string{"none", "credential", "header:X-Team"} {
		t.Run(by, func(t *testing.T) {
			tenant, err := ParseTenant(by)
			must(t, err)
			b := newBackend(t, false, answering)
			r := newRig(t, []string{b.addr}, withStrategy("prefix"), withConfig(func(c *Config) { c.Tenant = tenant }))
			route := func(who, pin string) string {
				return r.raw(request("POST", "/v1/chat/completions", secretPrompt(pin), "Authorization: Bearer "+who, "X-Team: "+who)).
					want(t, 200).Header.Get("X-Grapevine-Route")
			}
			route("alice", "1234")
			if again := route("alice", "1234"); strings.Contains(again, ";matched=0;") {
				t.Errorf("alice herself: %s", again)
			}
			right, wrong := route("mallory-1", "1234"), route("mallory-2", "4321")
			if (right == wrong) != (by != "none") {
				t.Errorf("the right PIN: %s, a wrong one: %s", right, wrong)
			}
			if by != "none" && !strings.HasSuffix(right, ";matched=0;predicted=0") {
				t.Errorf("another tenant's prompt matches: %s", right)
			}
		})
	}
}

func saltSeen(t *testing.T, req seenRequest, member string) string {
	t.Helper()
	var body map[string]any
	must(t, json.Unmarshal([]byte(req.body), &body))
	salt, _ := body[member].(string)
	return salt
}

// The salt depends on tenant and client salt only, is equal on every node, and reveals neither.
func TestTenantSaltsTheEnginesCache(t *testing.T) {
	tenant, err := ParseTenant("credential")
	must(t, err)
	b := newBackend(t, false, answering)
	var nodes []*rig
	for range 2 {
		nodes = append(nodes, newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Tenant = tenant })))
	}
	seen := map[string]string{}
	for _, r := range nodes {
		for _, tc := range []struct{ who, headers, path, body, member string }{
			{"a", "Authorization: Bearer a", "/v1/chat/completions", `{"messages":[]}`, "cache_salt"},
			{"a", "authorization: Bearer a", "/v1/completions", `{"prompt":"x"}`, "cache_salt"},
			{"a, own x", "Authorization: Bearer a", "/v1/chat/completions", `{"messages":[],"cache_salt":"x"}`, "cache_salt"},
			{"a, own y", "Authorization: Bearer a", "/v1/chat/completions", `{"cache_salt":"y","messages":[]}`, "cache_salt"},
			{"b", "Authorization: Bearer b", "/v1/chat/completions", `{"messages":[]}`, "cache_salt"},
			{"b, own x", "Authorization: Bearer b", "/v1/responses", `{"input":"i","cache_salt":"x"}`, "cache_salt"},
			{"b, own x", "Authorization: Bearer b", "/generate", `{"text":"i","extra_key":"x"}`, "extra_key"},
			{"key a", "x-api-key: Bearer a", "/v1/messages", `{"messages":[]}`, "cache_salt"},
			{"nobody", "X-A: b", "/v1/chat/completions", `{"messages":[]}`, "cache_salt"},
			{"nobody", "X_Api_Key: Bearer a", "/v1/chat/completions", `{"messages":[]}`, "cache_salt"},
			{"two", "Authorization: Bearer a\r\nAuthorization: Bearer b", "/v1/chat/completions", `{"messages":[]}`, "cache_salt"},
		} {
			r.raw(request("POST", tc.path, tc.body, tc.headers)).want(t, 200)
			all := b.requests()
			salt := saltSeen(t, all[len(all)-1], tc.member)
			if first, known := seen[tc.who]; len(salt) != 32 || known && salt != first {
				t.Errorf("%s: salt %q, before %q", tc.who, salt, first)
			}
			seen[tc.who] = salt
		}
	}
	of := map[string]string{}
	for who, salt := range seen {
		if other, dup := of[salt]; dup {
			t.Errorf("%s has the salt of %s", who, other)
		}
		of[salt] = who
	}
}

// Without headers Describe takes the salt in the body.
func TestDescribeKnowsTheTenant(t *testing.T) {
	tenant, err := ParseTenant("header:X-Team")
	must(t, err)
	r := newRig(t, nil, withConfig(func(c *Config) { c.Tenant = tenant }))
	describe := func(header func(string) []byte) (q policy.Request) {
		must(t, r.proxy.Describe([]byte("/v1/chat/completions"), header, []byte(secretPrompt("1")), &q))
		return q
	}
	of := func(team string) func(string) []byte {
		return func(name string) []byte {
			if name == "X-Team" {
				return []byte(team)
			}
			return nil
		}
	}
	a, again, b, nobody := describe(of("a")), describe(of("a")), describe(of("b")), describe(of(""))
	if a.Hashes[0] != again.Hashes[0] || a.Hashes[0] == b.Hashes[0] || b.Hashes[0] == nobody.Hashes[0] {
		t.Errorf("%x %x %x %x", a.Hashes[0], again.Hashes[0], b.Hashes[0], nobody.Hashes[0])
	}
}

func TestParseTenant(t *testing.T) {
	for _, bad := range []string{"all", "header", "header:", "header:a b", "header:a:b", "header:X_Team", "header:Host", "header:connection",
		"header:X-Forwarded-For", "header:Content-Length", "header:X-Request-Id", "header:a\r\nb", "header:Accept-Encoding"} {
		if _, err := ParseTenant(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, good := range []string{"", "none", "credential", "header:X-Team", "header:x-org"} {
		if _, err := ParseTenant(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

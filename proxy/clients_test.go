package proxy

import (
	"encoding/json"
	"strings"
	"testing"

	"grapevine.example/proxy/clients"
)

func newBook(t *testing.T, anonymous string, list ...*clients.Client) *clients.Book {
	t.Helper()
	for _, c := range list {
		if c.Weight == 0 {
			c.Weight = 1
		}
		c.Keys = append(c.Keys, clients.HashKey([]byte("key-of-"+c.Name)))
	}
	book, err := clients.New(list, anonymous)
	must(t, err)
	return book
}

// A request reaches an engine only with a known key, for a path and a model that its client may use, and the key never does.
func TestClientsDoor(t *testing.T) {
	b := newBackend(t, false, answering)
	book := newBook(t, "", &clients.Client{Name: "all", Trusted: true}, &clients.Client{Name: "chat", Models: []string{"llama*"}, Paths: []string{"/v1/chat/completions", "/v1/models"}})
	list := `{"object":"list"}`
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) {
		c.Clients, c.PassPaths = book, nil
		c.Models = func(id string, may func([]byte) bool) []byte {
			if may != nil && id != "" && !may([]byte(id)) {
				return nil
			}
			return []byte(list)
		}
	}))
	body := func(model string) string { return `{"model":"` + model + `","messages":[]}` }
	for _, c := range []struct {
		name, method, path, body, headers string
		status                            int
		code                              string
	}{
		{"no key", "POST", "/v1/chat/completions", body("llama"), "X-A: b", 401, "invalid_api_key"},
		{"empty key", "POST", "/v1/chat/completions", body("llama"), "Authorization: ", 401, "invalid_api_key"},
		{"wrong key", "POST", "/v1/chat/completions", body("llama"), "Authorization: Bearer key-of-nobody", 401, "invalid_api_key"},
		{"a longer key", "POST", "/v1/chat/completions", body("llama"), "Authorization: Bearer key-of-allx", 401, "invalid_api_key"},
		{"another scheme", "POST", "/v1/chat/completions", body("llama"), "Authorization: Basic key-of-all", 401, "invalid_api_key"},
		{"underscored name", "POST", "/v1/messages", body("llama"), "x_api_key: key-of-all", 401, "authentication_error"},
		{"preflight", "OPTIONS", "/v1/chat/completions", "", "Origin: http://a", 401, "invalid_api_key"},
		{"models without key", "GET", "/v1/models", "", "X-A: b", 401, "invalid_api_key"},
		{"unknown path without key", "GET", "/metrics", "", "X-A: b", 401, "invalid_api_key"},
		{"bearer", "POST", "/v1/chat/completions", body("llama"), "Authorization: Bearer key-of-all", 200, ""},
		{"bearer in lower case", "POST", "/v1/chat/completions", body("gpt"), "authorization: bearer key-of-all", 200, ""},
		{"x-api-key", "POST", "/v1/messages", body("llama"), "X-Api-Key: key-of-all", 200, ""},
		{"both", "POST", "/v1/messages", body("llama"), "X-Api-Key: key-of-nobody\r\nAuthorization: Bearer key-of-all", 401, "authentication_error"},
		{"stored response", "GET", "/v1/responses/resp_1", "", "Authorization: Bearer key-of-all", 200, ""},
		{"its model", "POST", "/v1/chat/completions", body("llama-70b"), "Authorization: Bearer key-of-chat", 200, ""},
		{"another model", "POST", "/v1/chat/completions", body("gpt"), "Authorization: Bearer key-of-chat", 403, "model_not_allowed"},
		{"no model", "POST", "/v1/chat/completions", `{"messages":[]}`, "Authorization: Bearer key-of-chat", 403, "model_not_allowed"},
		{"a model twice", "POST", "/v1/chat/completions", `{"model":"llama","model":"gpt","messages":[]}`, "Authorization: Bearer key-of-chat", 403, "model_not_allowed"},
		{"its adapter", "POST", "/v1/chat/completions", `{"model":"llama","lora_path":"llama-sql","messages":[]}`, "Authorization: Bearer key-of-chat", 200, ""},
		{"no adapter", "POST", "/v1/chat/completions", `{"model":"llama","lora_path":null,"messages":[]}`, "Authorization: Bearer key-of-chat", 200, ""},
		{"another adapter", "POST", "/v1/chat/completions", `{"model":"llama","lora_path":"sql","messages":[]}`, "Authorization: Bearer key-of-chat", 403, "model_not_allowed"},
		{"several adapters", "POST", "/v1/chat/completions", `{"model":"llama","lora_path":["llama-sql"],"messages":[]}`, "Authorization: Bearer key-of-chat", 403, "model_not_allowed"},
		{"another path", "POST", "/v1/completions", body("llama"), "Authorization: Bearer key-of-chat", 403, "path_not_allowed"},
		{"a path that begins alike", "POST", "/v1/chat/completions2", body("llama"), "Authorization: Bearer key-of-chat", 403, "path_not_allowed"},
		{"its models", "GET", "/v1/models/llama", "", "Authorization: Bearer key-of-chat", 200, ""},
		{"another's model", "GET", "/v1/models/gpt", "", "Authorization: Bearer key-of-chat", 404, "model_not_found"},
		{"control endpoint", "POST", "/flush_cache", "", "Authorization: Bearer key-of-all", 404, "path_not_served"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(b.requests())
			res := r.raw(request(c.method, c.path, c.body, c.headers)).want(t, c.status)
			seen := b.requests()[before:]
			if c.status != 200 {
				if len(seen) > 0 {
					t.Errorf("an engine received %s", seen[0].URL)
				}
				var got struct {
					Error struct{ Code, Type string }
				}
				must(t, json.Unmarshal([]byte(res.body), &got))
				if got.Error.Code != c.code && got.Error.Type != c.code {
					t.Errorf("%s, want %s", res.body, c.code)
				}
				if strings.Contains(res.body, "key-of") {
					t.Errorf("the answer repeats a key: %s", res.body)
				}
				if challenge := res.Header.Get("WWW-Authenticate"); (challenge == "Bearer") != (c.status == 401) {
					t.Errorf("WWW-Authenticate: %q", challenge)
				}
			}
			for _, req := range seen {
				if strings.Contains(string(req.raw), "key-of") {
					t.Errorf("an engine received a client's key:\n%s", req.raw)
				}
			}
		})
	}
}

func TestAnonymousClient(t *testing.T) {
	b := newBackend(t, false, answering)
	open := &clients.Client{Name: "open", Models: []string{"m"}}
	book := newBook(t, "open", open, &clients.Client{Name: "known"})
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Clients = book }))
	send := func(model, header string) reply {
		return r.raw(request("POST", "/v1/chat/completions", `{"model":"`+model+`","messages":[]}`, header))
	}
	send("m", "X-A: b").want(t, 200)
	send("n", "X-A: b").want(t, 403)
	send("m", "Authorization: Bearer wrong").want(t, 401)
	send("n", "Authorization: Bearer key-of-known").want(t, 200)
	if got := r.record(0).Client; got != "open" {
		t.Errorf("the first request is counted for %q", got)
	}
	// The list is replaced while requests run.
	r.proxy.SetClients(newBook(t, "", &clients.Client{Name: "new"}))
	send("m", "X-A: b").want(t, 401)
	send("m", "Authorization: Bearer key-of-known").want(t, 401)
	send("m", "Authorization: Bearer key-of-new").want(t, 200)
}

// Receipts and steering members are for trusted clients.
func TestTrustedClients(t *testing.T) {
	b := newBackend(t, false, answering)
	book := newBook(t, "", &clients.Client{Name: "friend", Trusted: true}, &clients.Client{Name: "other"})
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Clients, c.AllowEngineControl = book, true }))
	for _, who := range []string{"friend", "other"} {
		before := len(b.requests())
		res := r.raw(request("POST", "/v1/chat/completions", `{"model":"m","messages":[],"kv_transfer_params":{"do_remote_decode":true}}`,
			"Authorization: Bearer key-of-"+who, "X-Data-Parallel-Rank: 3")).want(t, 200)
		seen := b.requests()[before]
		trusted := who == "friend"
		if got := strings.Contains(seen.body, "kv_transfer_params"); got != trusted {
			t.Errorf("%s: engine received %s", who, seen.body)
		}
		if got := strings.Contains(strings.ToLower(string(seen.raw)), "x-data-parallel-rank"); got != trusted {
			t.Errorf("%s: engine received\n%s", who, seen.raw)
		}
		if got := res.Header.Get("X-Grapevine-Route") != ""; got != trusted {
			t.Errorf("%s: receipt %v", who, res.Header)
		}
		if res.Header.Get("X-Request-Id") == "" || !strings.Contains(string(seen.raw), res.Header.Get("X-Request-Id")) {
			t.Errorf("%s: the request's id is lost: %v", who, res.Header)
		}
	}
}

// With tenant: client, two keys of one client share caches, and two clients do not.
func TestClientsAsTenants(t *testing.T) {
	tenant, err := ParseTenant("client")
	must(t, err)
	b := newBackend(t, false, answering)
	book := newBook(t, "open", &clients.Client{Name: "a", Keys: []clients.KeyHash{clients.HashKey([]byte("second"))}}, &clients.Client{Name: "b"}, &clients.Client{Name: "open"})
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Clients, c.Tenant = book, tenant }))
	salt := func(header string) string {
		r.raw(request("POST", "/v1/chat/completions", `{"messages":[]}`, header)).want(t, 200)
		all := b.requests()
		return saltSeen(t, all[len(all)-1], "cache_salt")
	}
	a, second, other, anonymous := salt("Authorization: Bearer key-of-a"), salt("x-api-key: second"), salt("Authorization: Bearer key-of-b"), salt("X-A: b")
	if len(a) != 32 || a != second || a == other || a == anonymous || other == anonymous {
		t.Errorf("salts %q, %q of one client, %q and %q of others", a, second, other, anonymous)
	}
}

// Engines get the priority that a client asks for only without a list of clients, or from a trusted one.
func TestPriorityInsideEngines(t *testing.T) {
	b := newBackend(t, false, answering)
	book := newBook(t, "open", &clients.Client{Name: "friend", Trusted: true}, &clients.Client{Name: "other", Priority: clients.Interactive}, &clients.Client{Name: "open"})
	listed := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Clients = book }))
	for _, c := range []struct {
		r    *rig
		key  string
		want bool
	}{{listed, "key-of-friend", true}, {listed, "key-of-other", false}, {listed, "", false}, {newRig(t, []string{b.addr}), "", true}} {
		header := "X-A: b"
		if c.key != "" {
			header = "Authorization: Bearer " + c.key
		}
		for path, body := range map[string]string{
			"/v1/chat/completions": `{"model":"m","priority":-9,"messages":[{"role":"user","content":"priority"}],"prior\u0069ty":"-9"}`,
			"/v1/messages":         `{"messages":[],"priority":-9}`,
			"/generate":            `{"priority":-9,"text":"x","stream":true}`,
		} {
			before := len(b.requests())
			c.r.raw(request("POST", path, body, header, "X-Vllm-Priority: -9", "X_Vllm_Priority: -9")).want(t, 200)
			seen := b.requests()[before]
			if got := strings.Contains(seen.body, "-9"); got != c.want || !json.Valid([]byte(seen.body)) {
				t.Errorf("%q %s: engine received %s", c.key, path, seen.body)
			}
			if got := strings.Count(string(seen.raw), "riority: -9"); (got == 1) != c.want || got > 1 {
				t.Errorf("%q %s: engine received\n%s", c.key, path, seen.raw)
			}
		}
	}
}

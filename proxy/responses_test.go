package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

func TestResponseIDs(t *testing.T) {
	ids := newResponseIDs(mustHasher(t))
	other, err := prefixtree.NewHasher([]byte("another secret"), prefixtree.DefaultBlockBytes)
	must(t, err)
	var b idBlock
	seen := map[string]bool{}
	for i := range 1000 {
		backend, tenant := fmt.Sprintf("engine-%d", i%7), []byte(strings.Repeat("t", i%3))
		id := make([]byte, prompt.ResponseIDLen)
		ids.name(id, backend, tenant, &b)
		if seen[string(id)] {
			t.Fatalf("%s twice", id)
		}
		seen[string(id)] = true
		if key, ok := ids.holder(id, tenant, &b); !ok || key != prefixtree.BackendKey(backend) {
			t.Fatalf("%s: %x %v, want %s", id, key, ok, backend)
		}
		if _, ok := ids.holder(id, []byte("of another tenant"), &b); ok {
			t.Fatalf("%s is any tenant's", id)
		}
		if _, ok := newResponseIDs(other).holder(id, tenant, &b); ok {
			t.Fatalf("%s is any fleet's", id)
		}
		id[len(responsePrefix)+i%32] ^= 1
		if _, ok := ids.holder(id, tenant, &b); ok {
			t.Fatalf("%s is forged", id)
		}
	}
	for _, id := range []string{"", "resp_", "resp_" + strings.Repeat("0", 31), "resp_" + strings.Repeat("g", 32), "msg__" + strings.Repeat("0", 32)} {
		if _, ok := ids.holder([]byte(id), nil, &b); ok {
			t.Errorf("%q names a backend", id)
		}
	}
}

// storing answers as an engine that stores responses under the ids that requests give them.
func storing() script {
	var stored sync.Map
	return func(c *upstreamSide, req seenRequest) bool {
		var body struct {
			ID       string `json:"request_id"`
			Previous string `json:"previous_response_id"`
		}
		_ = json.Unmarshal([]byte(req.body), &body)
		id := body.Previous
		if rest, ok := strings.CutPrefix(req.URL.Path, "/v1/responses/"); ok {
			id = strings.TrimSuffix(rest, "/cancel")
		}
		if _, ok := stored.Load(id); id != "" && !ok {
			return c.send(jsonReply(404, `{"error":{"message":"engine has no `+id+`"}}`))
		}
		if body.ID != "" {
			stored.Store(body.ID, nil)
			id = body.ID
		}
		return c.send(jsonReply(200, `{"id":"`+id+`","usage":{"input_tokens":900,"output_tokens":5,"input_tokens_details":{"cached_tokens":890}}}`))
	}
}

func idIn(t *testing.T, rp reply) string {
	t.Helper()
	var body struct{ ID string }
	must(t, json.Unmarshal([]byte(rp.want(t, 200).body), &body))
	return body.ID
}

func follow(id string) string {
	return request("POST", "/v1/responses", `{"input":"`+strings.Repeat("and then? ", 200)+`","previous_response_id":"`+id+`"}`)
}

func TestFollowUpsGoToTheEngineWithTheResponse(t *testing.T) {
	engines := []*backend{newBackend(t, false, storing()), newBackend(t, false, storing()), newBackend(t, false, storing())}
	addrs := []string{engines[0].addr, engines[1].addr, engines[2].addr}
	// Round robin would send each turn to the next engine. The second router shares the secret and
	// nothing else.
	routers := []*rig{newRig(t, addrs), newRig(t, addrs)}
	for c := range 12 {
		id := idIn(t, routers[0].raw(request("POST", "/v1/responses", `{"input":"a","request_id":"resp_chosen"}`)))
		if len(id) != prompt.ResponseIDLen {
			t.Fatalf("id %q", id)
		}
		for turn := range 4 {
			r := routers[(c+turn)%2]
			rp := r.raw(follow(id))
			if route := rp.Header.Get("X-Grapevine-Route"); route != "stored;matched=0;predicted=0" {
				t.Errorf("route %q", route)
			}
			id = idIn(t, rp)
			idIn(t, r.raw(request("GET", "/v1/responses/"+id, "")))
			idIn(t, r.raw(request("POST", "/v1/responses/"+id+"/cancel", "")))
		}
	}
	// Engines judge other ids.
	routers[0].raw(follow("resp_unknown")).want(t, 404, "engine has no resp_unknown")
	routers[0].raw(request("GET", "/v1/responses/resp_unknown", "")).want(t, 404, "engine has no resp_unknown")
}

func TestFollowUpsDoNotMove(t *testing.T) {
	for name, script := range map[string]script{
		"busy":        func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(429, `{"full":1}`)) },
		"unavailable": func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(503, `{}`)) },
		"resetting":   resetting,
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newBackend(t, false, script), newBackend(t, false, storing())
			r := newRig(t, []string{bad.addr, good.addr})
			id := make([]byte, prompt.ResponseIDLen)
			r.proxy.responses.name(id, "b0", nil, new(idBlock))
			want := map[string]int{"busy": 429, "unavailable": 503, "resetting": 502}[name]
			for range 3 { // also while the engine is avoided
				r.raw(follow(string(id))).want(t, want)
			}
			if n := len(good.requests()); n > 0 {
				t.Errorf("%d requests went to the other engine", n)
			}
		})
	}
}

func TestHolderIsGone(t *testing.T) {
	r := newRig(t, []string{newBackend(t, false, answering).addr})
	id := make([]byte, prompt.ResponseIDLen)
	r.proxy.responses.name(id, "of another fleet's list", nil, new(idBlock))
	r.raw(follow(string(id))).want(t, 404, "response_not_found", "without previous_response_id")
	r.raw(request("GET", "/v1/responses/"+string(id), "")).want(t, 404, "response_not_found")
}

func TestTenantsCannotReadResponses(t *testing.T) {
	tenant, err := ParseTenant("header:X-Team")
	must(t, err)
	engine := newBackend(t, false, storing())
	r := newRig(t, []string{engine.addr}, withConfig(func(c *Config) { c.Tenant = tenant }))
	id := idIn(t, r.raw(request("POST", "/v1/responses", `{"input":"a"}`, "X-Team: red")))
	n := len(engine.requests())
	for _, headers := range [][]string{nil, {"X-Team: blue"}} {
		r.raw(request("GET", "/v1/responses/"+id, "", headers...)).want(t, 404, "response_not_found")
		r.raw(request("POST", "/v1/responses/"+id+"/cancel", "", headers...)).want(t, 404, "response_not_found")
		r.raw(request("POST", "/v1/responses", `{"input":"a","previous_response_id":"`+id+`"}`, headers...)).want(t, 404, "response_not_found")
		r.raw(request("GET", "/v1/responses/resp_1", "", headers...)).want(t, 404, "response_not_found")
	}
	if len(engine.requests()) != n {
		t.Error("the engine saw another tenant's requests")
	}
	idIn(t, r.raw(request("GET", "/v1/responses/"+id, "", "X-Team: red")))
}

// Another attempt has another id, or the response would be sought where the request failed.
func TestRetriedResponseIsNamedAnew(t *testing.T) {
	bad := newBackend(t, false, resetting)
	good := newBackend(t, false, storing())
	r := newRig(t, []string{bad.addr, good.addr})
	for range 4 {
		id := idIn(t, r.raw(request("POST", "/v1/responses", `{"input":"a"}`)))
		idIn(t, r.raw(follow(id)))
	}
	if len(bad.requests()) == 0 {
		t.Error("nothing was retried")
	}
}

func TestDescribeFindsTheHolder(t *testing.T) {
	r := newRig(t, nil)
	id := make([]byte, prompt.ResponseIDLen)
	r.proxy.responses.name(id, "b1", nil, new(idBlock))
	var q policy.Request
	body := `{"input":"` + strings.Repeat("a", 2000) + `","previous_response_id":"` + string(id) + `"}`
	must(t, r.proxy.Describe([]byte("/v1/responses"), nil, []byte(body), &q))
	if !q.Stored || !q.Continued || q.Holder != prefixtree.BackendKey("b1") || len(q.Hashes) > 0 || q.PromptBytes < 2000 {
		t.Errorf("%+v", q)
	}
}

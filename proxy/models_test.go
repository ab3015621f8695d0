package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func listing(ids ...string) script {
	var entries []string
	for _, id := range ids {
		entries = append(entries, fmt.Sprintf(`{"id":%q,"object":"model","owned_by":"x","max_model_len":4096}`, id))
	}
	return func(c *upstreamSide, req seenRequest) bool {
		if req.URL.Path != "/v1/models" {
			return c.send(jsonReply(404, "{}"))
		}
		return c.send(jsonReply(200, `{"object":"list","data":[`+strings.Join(entries, ",")+`]}`))
	}
}

func TestModelsAreMerged(t *testing.T) {
	t.Parallel() // waits for the slow one
	slow := newBackend(t, false, hanging)
	broken := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(500, "{}")) })
	odd := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool { return c.send(jsonReply(200, "[1]")) })
	a, b := newBackend(t, false, listing("m1", "org/m2")), newBackend(t, true, listing("org/m2", "lora-a"))
	r := newRig(t, []string{slow.addr, a.addr, refusing(), broken.addr, odd.addr, b.addr},
		withTimeouts(func(t *Timeouts) { t.Models, t.Connect = 3*time.Second, 3*time.Second }))
	rp := r.raw(request("GET", "/v1/models", "", "Authorization: Bearer k")).want(t, 200)
	var list struct {
		Object  string
		Data    []struct{ ID, Owned_by string }
		HasMore *bool   `json:"has_more"`
		FirstID *string `json:"first_id"`
	}
	must(t, json.Unmarshal([]byte(rp.body), &list))
	if list.Object != "list" || fmt.Sprint(list.Data) != "[{lora-a x} {m1 x} {org/m2 x}]" || list.HasMore == nil || *list.FirstID != "lora-a" {
		t.Errorf("%s", rp.body)
	}
	if got := a.requests()[0].Header.Get("Authorization"); got != "Bearer k" {
		t.Errorf("Authorization %q", got)
	}
	r.raw(request("GET", "/v1/models/org%2Fm2", "", "Authorization: Bearer k")).want(t, 200, `"id":"org/m2"`)
	r.raw(request("GET", "/v1/models/org/m2", "", "Authorization: Bearer k")).want(t, 200, `"id":"org/m2"`)
	r.raw(request("GET", "/v1/models/none", "", "Authorization: Bearer k")).want(t, 404, `"code":"model_not_found"`)
	if n := len(a.requests()); n != 1 {
		t.Errorf("asked %d times within the cache's life", n)
	}
	// Another key may see other models.
	r.raw(request("GET", "/v1/models", "", "Authorization: Bearer other")).want(t, 200)
	if n := len(a.requests()); n != 2 {
		t.Errorf("one client's list was given to another")
	}
}

func TestModelsAreFetchedOnce(t *testing.T) {
	gate := make(chan bool)
	b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
		<-gate
		return listing("m")(c, req)
	})
	r := newRig(t, []string{b.addr})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { r.raw(request("GET", "/v1/models", "")).want(t, 200, `"m"`) })
	}
	eventually(t, "asked", func() bool { return len(b.requests()) == 1 })
	close(gate)
	wg.Wait()
	if n := len(b.requests()); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestModelsWhenNobodyAnswers(t *testing.T) {
	r := newRig(t, []string{refusing()})
	r.raw(request("GET", "/v1/models", "")).want(t, 502, `"code":"upstream_unreachable"`)
	none := newRig(t, nil)
	none.raw(request("GET", "/v1/models", "")).want(t, 200, `"data":[]`)
}

func TestModelKeysAreBounded(t *testing.T) {
	b := newBackend(t, false, listing("m"))
	r := newRig(t, []string{b.addr})
	for i := range 3 * modelsKeys {
		r.raw(request("GET", "/v1/models", "", fmt.Sprintf("Authorization: %d", i))).want(t, 200)
	}
	if n := len(r.proxy.models.lists); n > modelsKeys {
		t.Errorf("%d lists are kept", n)
	}
}

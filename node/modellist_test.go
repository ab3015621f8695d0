package node

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"grapevine.example/node/config"
)

func TestModelListAsksNobody(t *testing.T) {
	var asked atomic.Int64
	tell := func(list string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer sesame" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if r.URL.Path == "/v1/models" {
				asked.Add(1)
			}
			fmt.Fprintf(w, `{"object":"list","data":[%s]}`, list)
		}))
		t.Cleanup(s.Close)
		return s
	}
	a := tell(`{"id":"m1","object":"model","created":5,"owned_by":"vllm","max_model_len":4096},{"id":"org/m2","object":"model","created":6,"owned_by":"vllm"}`)
	b := tell(`{"id":"org/m2","object":"model","created":7,"owned_by":"sglang"},{"id":"lora-a","object":"model","parent":"m1"}`)
	silent := newFakeEngine(t)
	cfg := testConfig()
	cfg.Backends = []config.Backend{{URL: a.URL, APIKey: "sesame"}, {URL: b.URL, APIKey: "sesame"}, {URL: silent.URL, Models: []string{"declared"}}}
	n := startNode(t, cfg)
	get := func(path, key string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Addr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	eventually(t, "both engines have told their models", func() bool {
		_, text := get("/v1/models", "x")
		return strings.Contains(text, `"id":"m1"`) && strings.Contains(text, `"id":"lora-a"`) // which also names m1, as its parent
	})
	before := asked.Load()
	var text string
	for i := range 50 {
		var code int
		if code, text = get("/v1/models", fmt.Sprint("key", i)); code != http.StatusOK {
			t.Fatalf("answered %d", code)
		}
	}
	if n := asked.Load() - before; n > 0 {
		t.Errorf("50 clients made the router ask the engines %d times", n)
	}
	var list struct {
		Object  string
		HasMore *bool   `json:"has_more"`
		FirstID *string `json:"first_id"`
		Data    []struct {
			ID, Object, Owned_by string
			Max_model_len        int
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list.Data {
		if m.Object != "model" {
			t.Errorf("%+v", m)
		}
		got = append(got, fmt.Sprint(m.ID, " ", m.Max_model_len))
	}
	if want := "declared 0,lora-a 0,m1 4096,org/m2 0"; strings.Join(got, ",") != want || list.Object != "list" || list.HasMore == nil || *list.FirstID != "declared" {
		t.Errorf("%s", text)
	}
	if code, text := get("/v1/models/org%2Fm2", "x"); code != http.StatusOK || !strings.Contains(text, `"id":"org/m2"`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get("/v1/models/none", "x"); code != http.StatusNotFound || !strings.Contains(text, "model_not_found") {
		t.Errorf("%d %s", code, text)
	}
}

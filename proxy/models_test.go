package proxy

import "testing"

func TestModels(t *testing.T) {
	b := newBackend(t, false, answering)
	known := map[string]string{"": `{"object":"list","data":[]}`, "org/m2": `{"id":"org/m2","object":"model"}`}
	r := newRig(t, []string{b.addr}, withConfig(func(c *Config) {
		c.Models = func(id string, _ func([]byte) bool) []byte {
			if body, ok := known[id]; ok {
				return []byte(body)
			}
			return nil
		}
	}))
	for _, path := range []string{"/v1/models", "/v1/models/", "/v1/models?limit=20"} {
		rp := r.raw(request("GET", path, "")).want(t, 200, known[""])
		if rp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("headers %v", rp.Header)
		}
	}
	r.raw(request("GET", "/v1/models/org%2Fm2", "")).want(t, 200, `"id":"org/m2"`)
	r.raw(request("GET", "/v1/models/org/m2", "")).want(t, 200, `"id":"org/m2"`)
	r.raw(request("GET", "/v1/models/none", "")).want(t, 404, `"code":"model_not_found"`)
	r.raw(request("GET", "/v1/models/%zz", "")).want(t, 404, `"code":"model_not_found"`)
	delete(known, "")
	r.raw(request("GET", "/v1/models", "")).want(t, 502, `"code":"upstream_unreachable"`)
	if n := len(b.requests()); n > 0 {
		t.Errorf("the backend was asked %d times", n)
	}
}

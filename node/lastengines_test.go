package node

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

func TestLastEngines(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Backends = []config.Backend{
		{URL: "http://127.0.0.3:1", Name: "a", Models: []string{"m"}},
		{URL: "http://127.0.0.3:2", Name: "b", Models: []string{"m"}},
		{URL: "http://127.0.0.3:3", Name: "only-x", Models: []string{"m", "x"}},
	}
	n := startAgreed(t, cfg)
	c := client(n)
	refused := func(what string, err error, reason string) {
		t.Helper()
		var r *admin.Refusal
		if !errors.As(err, &r) || r.Status != http.StatusConflict || !strings.Contains(r.Reason, reason) || !strings.Contains(r.Remedy, "force") {
			t.Errorf("%s: %v", what, err)
		}
	}
	done := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	state := func(c *admin.Client, action string, names ...string) error {
		_, err := c.SetBackendState(t.Context(), names, action, "")
		return err
	}
	remove := func(c *admin.Client, names ...string) error {
		_, err := c.RemoveBackends(t.Context(), names)
		return err
	}
	refused("the only one of a model", state(c, "drain", "only-x"), "drain of only-x would leave the fleet with no active engine for model x")
	refused("the same, down", state(c, "down", "only-x"), "model x")
	refused("the same, removed", remove(c, "only-x"), "removal of only-x")
	refused("all at once", state(c, "drain", "a", "b", "only-x"), "drain of a, b, only-x would leave the fleet with no active engine")
	done("one of three", state(c, "drain", "a"))
	done("the same again", state(c, "drain", "a"))
	done("by force", state(c.Forced(), "drain", "only-x"))
	refused("the last one", state(c, "drain", "b"), "no active engine")
	refused("the last one, removed", remove(c, "b"), "no active engine")
	done("one that is drained already is no loss", remove(c, "only-x"))
	done("the last one by force", remove(c.Forced(), "b"))
}

// The last engine of a role leaves only by force, too.
func TestLastOfARole(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	for i, role := range []string{"prefill", "prefill", "decode", "both"} {
		cfg.Backends = append(cfg.Backends, config.Backend{URL: fmt.Sprintf("http://127.0.0.3:%d", i+1), Name: fmt.Sprint(role, i), Role: role, Models: []string{"m"}})
	}
	c := client(startAgreed(t, cfg))
	drain := func(want string, names ...string) {
		t.Helper()
		_, err := c.SetBackendState(t.Context(), names, "drain", "")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("drain of %v: %v, want %q", names, err, want)
		}
	}
	drain("no active engine of role prefill", "prefill0", "prefill1")
	drain("", "prefill0")
	drain("no active engine of role prefill", "prefill1")
	drain("no active engine of role decode", "decode2")
	drain("", "both3")
	drain("no active engine of role decode", "decode2")
}

package node

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"grapevine/node/admin"
	"grapevine/node/config"
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

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestUpgrade(t *testing.T) {
	t.Parallel()
	program := os.Getenv("GRAPEVINE_NEWER")
	if program == "" {
		t.Skip("GRAPEVINE_NEWER names no newer release (make build-newer)")
	}
	f := start(t, fleet.Config{Nodes: 4, Engines: 2, Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, n := range f.Nodes()[2:] {
		n.UseBinary(program)
		if err := n.Terminate(ctx); err != nil {
			t.Fatal(err)
		}
		restart(ctx, t, n)
	}
	if err := f.WaitMesh(ctx); err != nil {
		t.Fatal(err)
	}
	agree(ctx, t, f, 3)
	for i := range 8 {
		text := strings.Repeat(fmt.Sprint("conversation ", i, " "), 1000)
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":2}`, model, text)
		resp, err := http.Post(f.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	awaitSameFacts(ctx, t, f)
	for _, n := range f.Nodes()[:2] {
		for {
			s, err := n.Gossip(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s.BadState != 0 {
				t.Fatalf("%s could not read %d states", n.Name(), s.BadState)
			}
			if s.Stats.SkippedFrames > 0 {
				break
			}
			if sleep(ctx, 20*time.Millisecond) != nil {
				t.Fatalf("%s has heard nothing that it does not know: is %s a newer release?", n.Name(), program)
			}
		}
	}
}

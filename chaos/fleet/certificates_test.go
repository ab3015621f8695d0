package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	f := start(t, fleet.Config{Nodes: 3, Engines: 1, Certificates: true, Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, b := f.Node("node-0"), f.Node("node-1")
	served(t, f)
	if err := b.IssueCertificate(-time.Minute); err != nil {
		t.Fatal(err)
	}
	// Established connections are not checked again.
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	restart(ctx, t, a)
	awaitPeer(ctx, t, a, "node-2", true)
	for !strings.Contains(a.Log(), "certificate has expired") {
		if sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("node-0 does not mind:\n%s", a.Log())
		}
	}
	awaitPeer(ctx, t, a, "node-1", false)
	served(t, f)
	if err := b.IssueCertificate(fleet.CertificateLife); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitMesh(ctx); err != nil {
		t.Fatal(err)
	}
	served(t, f)
	plain := start(t, fleet.Config{Nodes: 1, NoBalancer: true})
	if plain.Nodes()[0].IssueCertificate(0) == nil {
		t.Error("expired a certificate that is derived from the key")
	}
}

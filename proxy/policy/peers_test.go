package policy

import (
	"testing"

	"grapevine/prefixtree"
)

func TestPeerLoadsAreSummedPerOrigin(t *testing.T) {
	r, _ := newRouter(t, Config{}, fleetOf(3))
	s := r.table.Load().slots[0]
	check := func(what string, tokens, active int64) {
		t.Helper()
		if s.peerTokens.Load() != tokens || s.peerActive.Load() != active {
			t.Errorf("%s: %d tokens, %d active, want %d, %d", what, s.peerTokens.Load(), s.peerActive.Load(), tokens, active)
		}
	}
	r.SetPeerLoad("a", []PeerLoad{{0, 1000, 2}, {1, 5, 1}, {9, 7, 7}})
	r.SetPeerLoad("b", []PeerLoad{{0, 500, 1}})
	check("two origins", 1500, 3)
	r.SetPeerLoad("a", []PeerLoad{{0, 200, 1}})
	check("a reports again", 700, 2)
	r.SetPeerLoad("a", []PeerLoad{{1, 200, 1}})
	check("a no longer lists the backend", 500, 1)
	r.DropPeer("b")
	r.DropPeer("b")
	check("b died", 0, 0)
	r.SetPeerLoad("c", []PeerLoad{{0, 90_000, 30}})
	if d := serve(t, r, ask(prompt(1, 1, 0, 8)), t0); d.Backend == 0 {
		t.Error("sent where a peer has 9 s of work waiting")
	}
	if tokens, active := r.Load(prefixtree.Backend(0)); tokens != 0 || active != 0 {
		t.Error("a peer's load counts as own")
	}
}

package node

import (
	"testing"

	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func TestRulesInForce(t *testing.T) {
	cfg := testConfig("http://127.0.0.3:1")
	cfg.Rules = []config.Rule{{Model: "own", Strategy: "session"}}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.proposed.Store(true)
	for _, tc := range []struct {
		text, source, strategy string
		version                uint64
	}{
		{"", "configuration", "session", 0},
		{"rules:\n  - {strategy: random}\n", "fleet", "random", 2},
		{"rules:\n  - {strategy: of-a-later-release}\n", "configuration", "session", 3},
	} {
		s := stateWith(max(1, tc.version), 1, "a")
		s.Rules = raftstore.Rules{Text: tc.text, Version: tc.version}
		n.adopt(s)
		set, text := n.Rules(), tc.text
		if tc.source == "configuration" {
			text = ""
		}
		if set.Source != tc.source || set.Version != tc.version || set.Text != text || len(set.Rules) != 1 || set.Rules[0].Strategy != tc.strategy {
			t.Errorf("version %d: %+v", tc.version, set)
		}
	}
}

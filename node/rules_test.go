package node

import (
	"fmt"
	"strings"
	"testing"

	"grapevine/raftstore"
)

func TestRulesInForce(t *testing.T) {
	cfg := testConfig("http://127.0.0.3:1")
	cfg.Rules = []Rule{{Model: "own", Strategy: "session"}}
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
		s := stateWith(max(1, tc.version), firstGeneration, "a")
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

func TestEveryMistakeInRules(t *testing.T) {
	for text, want := range map[string]string{
		"rules:\n  - {strategy: random}\n  - {strategy: odd}\n  - {stratgy: random}\n  - {path: 5, strategy: [a]}\n  - {value: x, strategy: random}\n": "3 rules[1].strategy, 4 rules[2].stratgy, 5 rules[3].strategy, 6 rules[4].value",
		"rules: []\nrules:\n  - {strategy: odd}\n":                                       "2 rules",
		"surprise: 1\nrules:\n  - {strategy: odd, value: x}\n":                           "1 surprise, 3 rules[0].strategy, 3 rules[0].value",
		"rules:\n" + strings.Repeat("  - {strategy: random}\n", 11) + "  - {model: m}\n": "13 rules[11]",
	} {
		var got []string
		_, err := ParseRules(text)
		if err == nil {
			t.Errorf("%q is taken", text)
			continue
		}
		first := refusalOfConfig(err)
		for _, r := range append([]Refusal{*first}, first.More...) {
			got = append(got, fmt.Sprint(r.Line, " ", r.Place))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}

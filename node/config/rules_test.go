package config

import (
	"fmt"
	"strings"
	"testing"
)

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
		for _, mistake := range Mistakes(err) {
			got = append(got, fmt.Sprint(mistake.Line, " ", mistake.Key))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}

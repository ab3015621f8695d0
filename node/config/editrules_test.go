package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestEditRules(t *testing.T) {
	const before = "# our rules\n\nrules:\n  # the old chat\n  - {name: chat, model: chat, to: qwen, pool: [version=v1]}\n  - model: batch-* # at night\n    strategy: random\n"
	added, err := AddRule(before, "name=canary,model=chat,share=5%,header=X-Team:7,pool=version=v2|zone=a,fallback=any", 0)
	if err != nil {
		t.Fatal(err)
	}
	const want = "# our rules\n\nrules:\n  - {name: canary, model: chat, header: X-Team, share: 5%, pool: [version=v2, zone=a], fallback: [any], value: \"7\"}\n" +
		"  # the old chat\n  - {name: chat, model: chat, to: qwen, pool: [version=v1]}\n  - model: batch-* # at night\n    strategy: random\n"
	if added != want {
		t.Errorf("canary added: %s", added)
	}
	old, _ := ParseRules(before)
	now, err := ParseRules(added)
	if err != nil || len(now) != 3 || !reflect.DeepEqual(now[1:], old) || now[0].HeaderValue != "7" || now[0].Share != "5%" {
		t.Errorf("%+v, %v", now, err)
	}
	for _, which := range []string{"canary", "0"} {
		if removed, err := RemoveRule(added, which); err != nil || removed != before {
			t.Errorf("%s removed: %s, %v", which, removed, err)
		}
	}
	for _, place := range []int{-1, 1, 99} { // of one rule
		text, err := AddRule("rules: [{name: a, to: x}]", "name=b,to=y", place)
		if err != nil || text != "rules:\n  - {name: a, to: x}\n  - {name: b, to: y}\n" {
			t.Errorf("at %d: %s, %v", place, text, err)
		}
	}
	first, err := AddRule("", "strategy=random", -1)
	if err != nil || first != "rules:\n  - {strategy: random}\n" {
		t.Errorf("the first rule: %s, %v", first, err)
	}
	if none, err := RemoveRule(first, "0"); err != nil || none != "rules: []\n" {
		t.Errorf("no rule left: %s, %v", none, err)
	}
	for what, err := range map[string]error{
		"no rule is named \"x\"": second(RemoveRule(first, "x")), "no rule is named \"1\"": second(RemoveRule(first, "1")),
		"no rule is named \"0\"": second(RemoveRule("", "0")),
		"no rule is named \"\"":  second(RemoveRule(first, "")), "unknown attribute": second(AddRule(first, "pol=a=b", 0)), "a percentage": second(AddRule(first, "name=n,share=5,to=x", 0)),
	} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
}

func second(_ string, err error) error { return err }

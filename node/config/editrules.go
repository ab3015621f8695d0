package config

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// noRules stands for a text that was never applied.
const noRules = "rules: []"

// AddRule puts a rule, as --rule takes it, at a place of the list in a text of rules, and returns the new text, with the comments of the
// old one. A negative place, or one beyond the list, means the end. The rule is checked, the list is not.
func AddRule(text, rule string, place int) (string, error) {
	var r Rule
	if err := r.UnmarshalText([]byte(rule)); err != nil {
		return "", err
	}
	return editRules(text, func(list []*yaml.Node) []*yaml.Node {
		if place < 0 || place > len(list) {
			place = len(list)
		}
		return slices.Insert(list, place, r.yaml())
	})
}

// RemoveRule takes the rule with a name, else the one at that place, out of a text of rules, and returns the new text.
func RemoveRule(text, which string) (string, error) {
	rules, err := ParseRules(cmp.Or(text, noRules))
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(rules, func(r Rule) bool { return which != "" && r.Name == which })
	if at < 0 {
		if at, err = strconv.Atoi(which); err != nil || at < 0 || at >= len(rules) {
			return "", fmt.Errorf("no rule is named %q or has that place: see grapevine rules show", which)
		}
	}
	return editRules(text, func(list []*yaml.Node) []*yaml.Node { return slices.Delete(list, at, at+1) })
}

func editRules(text string, edit func(list []*yaml.Node) []*yaml.Node) (string, error) {
	text = cmp.Or(text, noRules)
	if _, err := ParseRules(text); err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return "", yamlError(err)
	}
	list := doc.Content[0].Content[1] // of rules, the only key
	if list.Kind != yaml.SequenceNode {
		return "", &Error{Line: list.Line, Key: "rules", Reason: "not a list", Remedy: "write a list with rules apply first"}
	}
	list.Style = 0 // a line for each rule
	list.Content = edit(list.Content)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	return out.String(), nil
}

// yaml is the rule in one line.
func (r *Rule) yaml() *yaml.Node {
	text := func(s string) *yaml.Node {
		n := new(yaml.Node)
		n.SetString(s)
		return n
	}
	rule := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, f := range r.fields() {
		switch v := f.dst.(type) {
		case *string:
			if *v != "" {
				rule.Content = append(rule.Content, text(f.key), text(*v))
			}
		case *[]string:
			if len(*v) > 0 {
				list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
				for _, s := range *v {
					list.Content = append(list.Content, text(s))
				}
				rule.Content = append(rule.Content, text(f.key), list)
			}
		}
	}
	return rule
}

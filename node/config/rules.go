package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// ParseRules parses a YAML mapping with the key rules. The error joins a *Error for each mistake.
func ParseRules(text string) ([]Rule, error) {
	if len(text) > raftstore.MaxRulesBytes {
		return nil, &Error{Reason: fmt.Sprintf("%d bytes are more than the %d that are possible", len(text), raftstore.MaxRulesBytes), Remedy: "make one of several rules with model: PREFIX*"}
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(text))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, &Error{Reason: "nothing is there", Remedy: "write rules: [] for none"}
	case err != nil:
		return nil, yamlError(err)
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, yamlError(err)
	default:
		return nil, &Error{Line: second.Line, Reason: "more than one YAML document", Remedy: "keep the first and remove the ---"}
	}
	var rules []Rule
	lines := make(map[string]int)
	errs := decodeMapping(doc.Content[0], "", []field{{"rules", "list of rules", &rules}}, lines)
	if len(errs) == 0 && lines["rules"] == 0 {
		errs = append(errs, &Error{Line: doc.Content[0].Line, Key: "rules", Reason: "is missing", Remedy: "write rules: [] for none"})
	}
	unread := slices.Clone(errs)
	for i, at := range ruleLines(doc.Content[0]) {
		key := fmt.Sprintf("rules[%d]", i)
		if i >= len(rules) || slices.ContainsFunc(unread, func(err error) bool { return concerns(err, key) }) {
			continue // reported already
		}
		r := &rules[i]
		if !slices.Contains(policy.Strategies(), r.Strategy) {
			errs = append(errs, &Error{Line: at, Key: key + ".strategy", Reason: fmt.Sprintf("%q is unknown", r.Strategy),
				Remedy: "known are " + strings.Join(policy.Strategies(), ", ")})
		}
		if r.HeaderValue != "" && r.Header == "" {
			errs = append(errs, &Error{Line: at, Key: key + ".value", Reason: "is that of no header", Remedy: "name it with header"})
		}
	}
	if len(errs) > 0 {
		slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(lineOf(a), lineOf(b)) })
		return nil, errors.Join(errs...)
	}
	return rules, nil
}

func concerns(err error, key string) bool {
	var c *Error
	return errors.As(err, &c) && (c.Key == key || strings.HasPrefix(c.Key, key+"."))
}

func lineOf(err error) int {
	var c *Error
	if errors.As(err, &c) {
		return c.Line
	}
	return 0
}

func ruleLines(top *yaml.Node) (lines []int) {
	if top.Kind == yaml.AliasNode {
		top = top.Alias
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		list := top.Content[i+1]
		if list.Kind == yaml.AliasNode {
			list = list.Alias
		}
		if top.Content[i].Value != "rules" {
			continue
		}
		for _, n := range list.Content {
			lines = append(lines, n.Line)
		}
	}
	return lines
}

func yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	e := &Error{Reason: text, Remedy: "write YAML"}
	var rest string
	if n, _ := fmt.Sscanf(text, "line %d:", &e.Line); n == 1 {
		_, rest, _ = strings.Cut(text, ": ")
		e.Reason = rest
	}
	return e
}

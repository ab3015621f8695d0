package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine/raftstore"
)

// ParseRules parses a YAML mapping with the key rules. The error joins a *Error for each mistake.
func ParseRules(text string) ([]Rule, error) {
	if len(text) > raftstore.MaxRulesBytes {
		return nil, &Error{Reason: fmt.Sprintf("%d bytes are more than the %d that are possible", len(text), raftstore.MaxRulesBytes), Remedy: "make one of several rules with model: PREFIX*"}
	}
	top, err := oneDocument([]byte(text))
	switch {
	case err != nil:
		return nil, err
	case top == nil:
		return nil, &Error{Reason: "the text is empty", Remedy: "write rules: [] for none"}
	}
	var rules []Rule
	lines := make(map[string]int)
	errs := decodeMapping(top, "", []field{{"rules", &rules}}, lines)
	if len(errs) == 0 && lines["rules"] == 0 {
		errs = append(errs, &Error{Line: top.Line, Key: "rules", Reason: "is missing", Remedy: "write rules: [] for none"})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return rules, nil
}

// oneDocument returns the top node of the only YAML document in text, nil if text has none. Its
// error is a *Error.
func oneDocument(text []byte) (*yaml.Node, error) {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, yamlError(err)
	}
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
		return doc.Content[0], nil
	case err != nil:
		return nil, yamlError(err)
	}
	return nil, &Error{Line: second.Line, Reason: "more than one YAML document", Remedy: "keep the first and remove the ---"}
}

func yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	e := &Error{Reason: text, Remedy: "write YAML"}
	if n, _ := fmt.Sscanf(text, "line %d:", &e.Line); n == 1 {
		_, e.Reason, _ = strings.Cut(text, ": ")
	}
	return e
}

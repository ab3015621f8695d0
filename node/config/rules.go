package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

// Rule says what becomes of requests that match all its given conditions; see rules.Rule.
type Rule struct {
	Name string

	// Conditions.
	Model       string
	Path        string // prefix of the request path
	Header      string // name; with HeaderValue, or any value if that is empty
	HeaderValue string
	Share       string // of sessions or clients: 5%; "": all

	Session  string // header:NAME, body:MEMBER or client
	To       string // the model that engines are asked for
	Pool     []string
	Fallback []string // labels, or any alone
	Strategy string
}

// text is the rule in one word.
func (r *Rule) text() string {
	var parts []string
	for _, f := range r.fields() {
		switch v := f.dst.(type) {
		case *string:
			if *v != "" {
				parts = append(parts, f.key+"="+*v)
			}
		case *[]string:
			if len(*v) > 0 {
				parts = append(parts, f.key+"="+strings.Join(*v, "|"))
			}
		}
	}
	return strings.Join(parts, ",")
}

func (r *Rule) fields() []field {
	return []field{
		{"name", &r.Name}, {"model", &r.Model}, {"path", &r.Path}, {"header", &r.Header}, {"share", &r.Share},
		{"session", &r.Session}, {"to", &r.To}, {"pool", &r.Pool}, {"fallback", &r.Fallback}, {"strategy", &r.Strategy},
		{"value", &r.HeaderValue}, // in the text form part of header
	}
}

func decodeRule(n *yaml.Node, key string) (r Rule, errs []error) {
	if errs = decodeMapping(n, key, r.fields(), nil); len(errs) > 0 {
		return r, errs
	}
	bad := func(field, reason, remedy string) {
		errs = append(errs, &Error{Line: n.Line, Key: key + field, Reason: reason, Remedy: remedy})
	}
	if r.Strategy != "" && !slices.Contains(policy.Strategies(), r.Strategy) {
		bad(".strategy", fmt.Sprintf("%q is unknown", r.Strategy), knownStrategies(r.Strategy))
	}
	if r.HeaderValue != "" && r.Header == "" {
		bad(".value", "belongs to no header", "name it with header")
	}
	if len(errs) > 0 {
		return r, errs
	}
	if err := r.check(); err != nil {
		bad("", err.Error(), "")
	}
	return r, errs
}

func knownStrategies(name string) string {
	known := "known are " + strings.Join(policy.Strategies(), ", ")
	if name == "kv" { // as other routers call it
		return "prefix follows the cache events of engines that publish them, see the setting events; " + known
	}
	return known
}

// UnmarshalText reads key=value[,key=value...].
func (r *Rule) UnmarshalText(text []byte) error {
	*r = Rule{}
	fields := r.fields()
	err := setFields(strings.Split(string(text), ","), fields[:len(fields)-1])
	if err == nil {
		r.Header, r.HeaderValue, _ = strings.Cut(r.Header, ":")
		err = r.check()
	}
	if err != nil {
		return fmt.Errorf("rule %q: %w", text, err)
	}
	return nil
}

// check sorts labels and returns the first mistake, with its remedy.
func (r *Rule) check() error {
	slices.Sort(r.Pool)
	slices.Sort(r.Fallback)
	if err := raftstore.CheckLabels(r.Pool); err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	if err := raftstore.CheckLabels(r.Fallback); err != nil && !slices.Equal(r.Fallback, []string{rules.AnyBackend}) {
		return fmt.Errorf("fallback: %w; any alone is every engine of the model", err)
	}
	if _, err := parseShare(r.Share); err != nil {
		return err
	}
	spec := r.Spec()
	return spec.Check(policy.Strategies())
}

// parseShare reads a percentage above 0 and below 100; "" is 0.
func parseShare(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, found := strings.CutSuffix(text, "%")
	share, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(share > 0 && share < 100) {
		return 0, fmt.Errorf("share %q is not a percentage above 0 and below 100: write 5%%, or leave it out for all", text)
	}
	return share / 100, nil
}

// Spec is the rule as the policy follows it.
func (r *Rule) Spec() rules.Rule {
	share, _ := parseShare(r.Share) // checked
	return rules.Rule{
		Name: r.Name, Model: r.Model, PathPrefix: r.Path, Header: r.Header, HeaderValue: r.HeaderValue, Share: share,
		Session: r.Session, To: r.To, Pool: strings.Join(r.Pool, ","), Fallback: strings.Join(r.Fallback, ","), Strategy: r.Strategy,
	}
}

// Targets reports whether the rule says more than releases know that have only strategies.
func (r *Rule) Targets() bool {
	return r.Name != "" || r.Share != "" || r.Session != "" || r.To != "" || len(r.Pool) > 0 || len(r.Fallback) > 0
}

// Specs converts a list.
func Specs(list []Rule) []rules.Rule {
	var out []rules.Rule
	for i := range list {
		out = append(out, list[i].Spec())
	}
	return out
}

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

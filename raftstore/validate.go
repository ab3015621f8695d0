package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

func in(place string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", place, err)
}

func given[T any](v *T, check func(T) error) error {
	if v == nil {
		return nil
	}
	return check(*v)
}

func (c AddBackends) validate() error {
	if err := checkCount("backends", len(c.Backends), MaxBackends); err != nil {
		return err
	}
	for i := range c.Backends {
		if err := c.Backends[i].Check(); err != nil {
			return fmt.Errorf("backends[%d]: %w", i, err)
		}
	}
	return nil
}

// Check says what AddBackends would refuse about a backend alone.
func (b Backend) Check() error {
	c := UpdateBackend{Name: b.Name, URL: &b.URL, Models: &b.Models, KVTokens: &b.KVTokens, Role: &b.Role, Labels: &b.Labels, Source: &b.Source}
	if b.Weight != 0 {
		c.Weight = &b.Weight
	}
	return c.validate()
}

func (c UpdateBackend) validate() error {
	return cmp.Or(
		in("name", checkName(c.Name)),
		in("url of "+c.Name, given(c.URL, checkURL)),
		in("models of "+c.Name, given(c.Models, checkModels)),
		in("weight of "+c.Name, given(c.Weight, checkWeight)),
		in("kv_tokens of "+c.Name, given(c.KVTokens, checkTokens)),
		in("role of "+c.Name, given(c.Role, checkRole)),
		in("labels of "+c.Name, given(c.Labels, CheckLabels)),
		given(c.Source, checkSource),
	)
}

func (c SetBackendState) validate() error {
	if c.Action > MarkUp {
		return fmt.Errorf("action: %d is none", c.Action)
	}
	if err := in("reason", checkText(c.Reason, MaxReasonBytes)); err != nil {
		return err
	}
	switch drains := c.Action == Drain || c.Action == Resume; {
	case c.By > ByHealth, c.By == BySource && !drains, c.By == ByHealth && drains:
		return fmt.Errorf("by: %v does not %v", c.By, c.Action)
	case len(c.IfVersions) > 0 && len(c.IfVersions) != len(c.Names):
		return fmt.Errorf("if_versions: %d given for %d names", len(c.IfVersions), len(c.Names))
	}
	return checkNames(c.Names)
}

func (c NewGeneration) validate() error { return in("name", checkName(c.Name)) }

func (c RemoveBackends) validate() error { return checkNames(c.Names) }

func (c SetRules) validate() error { return in("rules", checkText(c.Text, MaxRulesBytes)) }

func (c SetHot) validate() error {
	if err := checkCount("hot", len(c.Changes), 2*MaxHot); err != nil {
		return err
	}
	seen := make(map[uint64]bool, len(c.Changes))
	for i, h := range c.Changes {
		switch {
		case seen[h.Anchor]:
			return fmt.Errorf("hot[%d]: anchor %016x is given twice", i, h.Anchor)
		case !h.Remove && h.R == 0:
			return fmt.Errorf("hot[%d]: r of anchor %016x is 0", i, h.Anchor)
		case !h.Remove && h.Expires <= 0:
			return fmt.Errorf("hot[%d]: anchor %016x never expires", i, h.Anchor)
		}
		seen[h.Anchor] = true
	}
	return nil
}

func (SetSwitches) validate() error { return nil }

func (c SetConstants) validate() error {
	if c.Constants.BlockBytes == 0 {
		return errors.New("constants: block_bytes is 0")
	}
	if c.Constants.Cluster == "" {
		return nil
	}
	return in("constants: cluster", checkName(c.Constants.Cluster))
}

// MaxRanks bounds the data-parallel ranks of one engine.
const MaxRanks = 1024

// SplitRank cuts a URL of a backend into its engine's URL and the data-parallel rank behind #rank=,
// -1 if the backend is the whole engine.
func SplitRank(url string) (engine string, rank int) {
	engine, fragment, _ := strings.Cut(url, "#")
	if rank, err := parseRank(fragment); err == nil {
		return engine, rank
	}
	return engine, -1
}

func parseRank(fragment string) (int, error) {
	text, found := strings.CutPrefix(fragment, "rank=")
	if rank, err := strconv.ParseUint(text, 10, 16); found && err == nil && rank < MaxRanks {
		return int(rank), nil
	}
	return 0, fmt.Errorf("%q behind # is not rank=K of a data-parallel rank from 0 to %d", fragment, MaxRanks-1)
}

// NormalURL returns a URL in the form that the store compares: lower case scheme and host, no
// default port, no trailing slash, and #rank=K for a data-parallel rank.
func NormalURL(raw string) (string, error) {
	if len(raw) > MaxURLBytes {
		return "", fmt.Errorf("%d bytes, at most %d are allowed", len(raw), MaxURLBytes)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", err
	}
	scheme := strings.ToLower(u.Scheme)
	switch {
	case scheme != "http" && scheme != "https":
		return "", fmt.Errorf("%q does not begin with http:// or https://", raw)
	case u.Hostname() == "":
		return "", fmt.Errorf("%q names no host", raw)
	case u.User != nil:
		return "", errors.New("user and password do not belong here")
	case u.RawQuery != "" || u.ForceQuery:
		return "", fmt.Errorf("%q has a query", raw)
	}
	rank := ""
	if u.Fragment != "" {
		n, err := parseRank(u.Fragment)
		if err != nil {
			return "", err
		}
		rank = "#rank=" + strconv.Itoa(n)
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		host = strings.TrimSuffix(strings.TrimSuffix(host, port), ":")
	}
	return scheme + "://" + host + strings.TrimRight(u.EscapedPath(), "/") + rank, nil
}

func checkURL(raw string) error {
	_, err := NormalURL(raw)
	return err
}

func checkCount(what string, n, most int) error {
	if n == 0 {
		return fmt.Errorf("%s: none given", what)
	}
	if n > most {
		return fmt.Errorf("%s: %d given, at most %d are possible", what, n, most)
	}
	return nil
}

func checkNames(names []string) error {
	if err := checkCount("names", len(names), MaxBackends); err != nil {
		return err
	}
	seen := make(map[string]bool, len(names))
	for i, n := range names {
		if err := checkName(n); err != nil {
			return fmt.Errorf("names[%d]: %w", i, err)
		}
		if seen[n] {
			return fmt.Errorf("names[%d]: %s is given twice", i, n)
		}
		seen[n] = true
	}
	return nil
}

func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > MaxNameBytes:
		return fmt.Errorf("%d bytes, at most %d are allowed", len(s), MaxNameBytes)
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c > '~' || c == ',' {
			return fmt.Errorf("%q: byte %d is %q; visible ASCII without commas is allowed", s, i, c)
		}
	}
	return nil
}

func checkText(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(s), limit)
	}
	if !utf8.ValidString(s) {
		return errors.New("is not UTF-8")
	}
	return nil
}

func checkModels(models []string) error {
	if len(models) > MaxModels {
		return fmt.Errorf("%d given, at most %d are allowed", len(models), MaxModels)
	}
	for i, m := range models {
		if m == "" {
			return fmt.Errorf("[%d] is empty", i)
		}
		if err := checkText(m, MaxNameBytes); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

// CheckLabels returns the first mistake in NAME=VALUE labels.
func CheckLabels(labels []string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("%d given, at most %d are allowed", len(labels), MaxLabels)
	}
	seen := make(map[string]bool, len(labels))
	for _, l := range labels {
		name, value, _ := strings.Cut(l, "=")
		switch {
		case name == "" || value == "" || strings.Contains(value, "="):
			return fmt.Errorf("%q is not NAME=VALUE", l)
		case strings.Contains(l, "|"):
			return fmt.Errorf("%q holds a |, which separates labels", l)
		case len(l) > MaxLabelBytes:
			return fmt.Errorf("%.20q... has %d bytes, at most %d are allowed", l, len(l), MaxLabelBytes)
		case seen[name]:
			return fmt.Errorf("%s is given twice", name)
		}
		if err := checkName(l); err != nil {
			return err
		}
		seen[name] = true
	}
	return nil
}

func checkWeight(w float64) error {
	if !(w > 0) || math.IsInf(w, 0) {
		return fmt.Errorf("%v is not a number above 0", w)
	}
	return nil
}

func checkTokens(n int64) error {
	if n < 0 {
		return fmt.Errorf("%d is negative", n)
	}
	return nil
}

func checkRole(r Role) error {
	if r > Decode {
		return fmt.Errorf("%d is none", r)
	}
	return nil
}

func checkSource(s Source) error {
	if s > Admin {
		return fmt.Errorf("source: %d is none", s)
	}
	return nil
}

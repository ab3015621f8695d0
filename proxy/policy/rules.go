package policy

import "bytes"

type ruleSet struct {
	rules    []resolvedRule
	fallback *named
}

type resolvedRule struct {
	Rule
	modelPrefix bool // Model is a prefix, without its "*"
	strategy    *named
}

func (s *ruleSet) strategy(q *Request) *named {
	for i := range s.rules {
		if s.rules[i].fits(q) {
			return s.rules[i].strategy
		}
	}
	return s.fallback
}

func (r *resolvedRule) fits(q *Request) bool {
	switch {
	case r.modelPrefix:
		if len(q.Model) < len(r.Model) || string(q.Model[:len(r.Model)]) != r.Model {
			return false
		}
	case r.Model != "" && string(q.Model) != r.Model:
		return false
	}
	if r.PathPrefix != "" && (len(q.Path) < len(r.PathPrefix) || string(q.Path[:len(r.PathPrefix)]) != r.PathPrefix) {
		return false
	}
	if r.Header == "" {
		return true
	}
	if q.Header == nil {
		return false
	}
	got := bytes.TrimSpace(q.Header(r.Header))
	if r.HeaderValue == "" {
		return len(got) > 0
	}
	return string(got) == r.HeaderValue
}

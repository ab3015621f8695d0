package policy

import "bytes"

type ruleSet struct {
	rules    []resolvedRule
	fallback *named
}

type resolvedRule struct {
	model, pathPrefix, value []byte
	header                   string
	modelPrefix              bool // model is a prefix
	strategy                 *named
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
	case r.modelPrefix && !bytes.HasPrefix(q.Model, r.model):
		return false
	case !r.modelPrefix && len(r.model) > 0 && !bytes.Equal(q.Model, r.model):
		return false
	case !bytes.HasPrefix(q.Path, r.pathPrefix):
		return false
	case r.header == "":
		return true
	case q.Header == nil:
		return false
	}
	got := bytes.TrimSpace(q.Header(r.header))
	return len(got) > 0 && (len(r.value) == 0 || bytes.Equal(got, r.value))
}

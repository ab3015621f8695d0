package policy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
)

func (r *Router) match(s *Scene) {
	hashes := s.Request.Hashes
	r.tree.Match(&s.matches, hashes, s.Now)
	if s.truth != nil {
		if b, known := s.truth.Latest(s.Request); known {
			s.latest = s.pool.entryOf(b)
		}
	}
	if len(hashes) == 0 {
		return
	}
	for _, h := range s.matches.Holders() {
		s.known = max(s.known, int(h.Blocks))
	}
	common, everywhere := s.pool.prefixes.Common(hashes, s.known, len(s.pool.entries))
	s.everywhere = min(float64(everywhere)*s.TokensPerBlock, float64(s.PromptTokens))
	if hot := r.hot.Load(); hot != nil {
		if p, blocks, ok := hot.deepest(hashes); ok {
			s.hot, common = p, max(common, blocks)
		}
	}
	s.CommonTokens = min(float64(common)*s.TokensPerBlock, float64(s.PromptTokens))
	if common < min(len(hashes), demand.Depth) {
		s.Branch = hashes[common]
	}
}

func (h *hotPrefixes) deepest(hashes []prefixtree.Hash) (p HotPrefix, blocks int, ok bool) {
	for i, a := range hashes[:min(len(hashes), demand.Depth)] {
		if h.filter[a>>6&63]&(1<<(a&63)) != 0 {
			if found, is := h.list[a]; is {
				p, blocks, ok = found, i+1, true
			}
		}
	}
	return p, blocks, ok
}

func (s *Scene) assign() {
	n := float64(s.PromptTokens)
	for i := range s.Candidates {
		s.Candidates[i].Uncached = n
	}
	answers := s.pool.texts.cachedAnswers()
	s.lookups = 0
	if c := s.candidate(s.latest); c != nil {
		for _, h := range s.matches.Holders() {
			if h.Backend == c.Backend {
				c.HeldBlocks = h.Blocks
			}
		}
		s.knows(c)
	}
	for _, h := range s.matches.Holders() {
		c := s.candidate(s.pool.entryOf(h.Backend))
		if c == nil {
			continue
		}
		c.HeldBlocks = h.Blocks
		c.Age = h.Age.Milliseconds()
		if c.exact || s.deep(c) && s.knows(c) {
			continue
		}
		c.Held = min(float64(h.Expected)*s.TokensPerBlock, n)
		c.Uncached = n - c.Held
		if c.Held > s.CommonTokens {
			c.Uncached *= 1 - answers
		}
		c.Uncached = max(c.Uncached, 1)
	}
	// Of the others, an engine may hold an answer behind a prompt without a block of its own, and in a small pool what the tree has not
	// heard of yet.
	small := len(s.Candidates) <= mostLookups
	for i := range s.Candidates {
		if c := &s.Candidates[i]; !c.exact && !s.deep(c) && (c.HeldBlocks > 0 || small) {
			s.knows(c)
		}
	}
}

// deep reports whether the tree believes that a candidate holds more than what is common, so that it is asked before the others, of which
// there may be too many.
func (s *Scene) deep(c *Candidate) bool {
	return float64(c.HeldBlocks)*s.TokensPerBlock > s.CommonTokens
}

// mostLookups bounds the lookups of a decision, about 1 us each.
const mostLookups = 32

// knows takes what the backend itself reports to hold, if it does.
func (s *Scene) knows(c *Candidate) bool {
	if s.truth == nil || s.lookups == mostLookups {
		return false
	}
	s.lookups++
	h := s.truth.Held(c.Backend, s.Request, int(c.HeldBlocks))
	if !h.Known {
		return false
	}
	c.exact = true
	c.Held = float64(h.Tokens) // the engine's count; the prompt's is an estimate, and perhaps lower
	c.Uncached = max(float64(s.PromptTokens)-c.Held+h.Loading, 1)
	return true
}

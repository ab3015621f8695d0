package policy

import "grapevine/prefixtree"

func (r *Router) match(s *Scene) {
	q, n := s.Request, float64(s.PromptTokens)
	if len(q.Hashes) == 0 {
		return
	}
	var common int
	s.Branch, common, s.judged = r.heavyHitters.branch(q.Hashes, 1/(2*float64(max(len(s.pool.entries), 1))), s.Now, s.peek)
	s.nameless = common >= min(len(q.Hashes), anchorDepth)
	s.CommonTokens = min(float64(common)*s.TokensPerBlock, n)
	r.tree.Match(&s.matches, q.Hashes, s.Now)
	if s.Nodes > 1 && !s.judged {
		s.widespread()
	}
	s.common = common
	if hot := r.hot.Load(); hot != nil {
		s.common = s.agree(hot, common)
	}
}

// widespread treats as common what most backends hold, before requests allow a judgement.
func (s *Scene) widespread() {
	holders := s.matches.Holders()
	deep := func(blocks int32) (n int) {
		for i := range holders {
			if holders[i].Blocks >= blocks {
				n++
			}
		}
		return n
	}
	low, high := int32(0), int32(len(s.Request.Hashes))
	for low < high {
		if mid := (low + high + 1) / 2; 2*deep(mid) > len(s.pool.entries) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	if tokens := float64(low) * s.TokensPerBlock; tokens > s.CommonTokens {
		s.CommonTokens = min(tokens, float64(s.PromptTokens))
		if s.nameless = int(low) == len(s.Request.Hashes); !s.nameless {
			s.Branch = s.Request.Hashes[low]
		}
	}
}

// agree treats the prompt's hot prefix as common and returns the common blocks.
func (s *Scene) agree(h *hotPrefixes, blocks int) int {
	p, deep, ok := h.deepest(s.Request.Hashes)
	if !ok {
		return blocks
	}
	s.hot = p
	tokens := min(float64(deep)*s.TokensPerBlock, float64(s.PromptTokens))
	if deep <= blocks || tokens <= s.CommonTokens {
		return blocks
	}
	s.CommonTokens, s.judged = tokens, true
	if s.nameless = deep == len(s.Request.Hashes); !s.nameless {
		s.Branch = s.Request.Hashes[deep]
	}
	return deep
}

func (h *hotPrefixes) deepest(hashes []prefixtree.Hash) (p HotPrefix, blocks int, ok bool) {
	last := min(len(hashes), anchorDepth) - 1
	for i := 0; i <= last; i = nextAnchor(i, last) {
		a := hashes[i]
		if h.filter[a>>6&63]&(1<<(a&63)) != 0 {
			if found, is := h.list[a]; is {
				p, blocks, ok = found, i+1, true
			}
		}
		if i == last {
			break
		}
	}
	return p, blocks, ok
}

func (r *Router) assign(s *Scene) {
	n := float64(s.PromptTokens)
	for i := range s.Candidates {
		s.Candidates[i].Uncached = n
	}
	answers := s.model.cachedAnswers()
	for _, h := range s.holders() {
		at := s.pool.entryOf(h.Backend)
		if at < 0 {
			continue
		}
		c := s.candidate(at)
		if c == nil {
			continue
		}
		c.HeldBlocks = h.Blocks
		c.Held = min(float64(h.Expected)*s.TokensPerBlock, n)
		c.Uncached = n - c.Held
		if c.Held > s.CommonTokens {
			c.Uncached *= 1 - answers
		}
		c.Uncached = max(c.Uncached, 1)
		c.Age = h.Age.Milliseconds()
	}
}

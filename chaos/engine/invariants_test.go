package engine

import (
	"fmt"
)

func (m *Model) check() error {
	if err := m.cache.check(); err != nil {
		return err
	}
	if m.used() > m.cfg.KVTokens || m.private < 0 {
		return fmt.Errorf("used %d (private %d) of %d", m.used(), m.private, m.cfg.KVTokens)
	}
	private, decoding, watched := 0, 0, 0
	phase := make([]int32, len(m.phase))
	pins := map[*node]int{}
	for _, j := range m.running {
		s := &j.seq
		private += m.allocated(j) - s.moved
		pins[s.node]++
		if s.base+s.moved != s.held*j.KeyTokens {
			return fmt.Errorf("job holds %d keys of %d, base %d moved %d", s.held, j.KeyTokens, s.base, s.moved)
		}
		if j.Cached < 0 || j.Cached >= j.PromptTokens {
			return fmt.Errorf("cached %d of %d", j.Cached, j.PromptTokens)
		}
		switch s.state {
		case stateDecode:
			decoding++
			phase[s.phase]++
			if j.Watch {
				watched++
			}
			if s.end < m.nextEnd {
				return fmt.Errorf("job ends at step %d, before the next end %d", s.end, m.nextEnd)
			}
		case statePrefill, stateReady:
		default:
			return fmt.Errorf("running job in state %d", s.state)
		}
	}
	if len(m.running) > m.cfg.MaxRunning || private != m.private || decoding != m.decoding || watched != m.watched {
		return fmt.Errorf("running %d, private %d want %d, decoding %d want %d, watched %d want %d",
			len(m.running), m.private, private, m.decoding, decoding, m.watched, watched)
	}
	for i := range phase {
		if phase[i] != m.phase[i] {
			return fmt.Errorf("phase %d: %d want %d", i, m.phase[i], phase[i])
		}
	}
	kids := map[*node]int{}
	for _, n := range m.cache.heads {
		if n.refs > 0 {
			kids[n.parent]++
		}
	}
	for _, n := range m.cache.heads {
		if n.refs != kids[n]+pins[n] {
			return fmt.Errorf("node with %d references, want %d locked children and %d jobs", n.refs, kids[n], pins[n])
		}
	}
	if want := 1 + kids[&m.cache.root] + pins[&m.cache.root]; m.cache.root.refs != want {
		return fmt.Errorf("root with %d references, want %d", m.cache.root.refs, want)
	}
	if len(m.running) == 0 && (m.private != 0 || m.cache.evictable != m.cache.tokens) {
		return fmt.Errorf("idle with %d private tokens, %d of %d evictable", m.private, m.cache.evictable, m.cache.tokens)
	}
	return nil
}

func (c *cache) check() error {
	tokens, evictable, leaves := 0, 0, 0
	kids := map[*node]int{}
	for first, n := range c.heads {
		if len(n.keys) == 0 || n.keys[0] != first || n.parent == nil {
			return fmt.Errorf("node %d is not at its place", first)
		}
		if n.parent != &c.root && c.heads[n.parent.keys[0]] != n.parent {
			return fmt.Errorf("node %d has a dead parent", first)
		}
		kids[n.parent]++
		tokens += len(n.keys) * n.tokens
		if n.refs == 0 {
			evictable += len(n.keys) * n.tokens
		}
	}
	for first, n := range c.heads {
		if n.kids != kids[n] {
			return fmt.Errorf("node %d counts %d children of %d", first, n.kids, kids[n])
		}
		leaf := n.kids == 0 && n.refs == 0
		if leaf {
			leaves++
		}
		if leaf != (n.slot >= 0) || (leaf && c.lru[n.slot] != n) {
			return fmt.Errorf("node %d: leaf %v, slot %d", first, leaf, n.slot)
		}
		if p := n.parent; n.refs == 0 && p.refs == 0 && p.last < n.last {
			return fmt.Errorf("node %d was used after its parent", first)
		}
	}
	if tokens != c.tokens || evictable != c.evictable || leaves != len(c.lru) {
		return fmt.Errorf("cache counts %d tokens (%d evictable, %d leaves), has %d (%d, %d)",
			c.tokens, c.evictable, len(c.lru), tokens, evictable, leaves)
	}
	return nil
}

package books

// Parked is what a waiting request adds to the work that waits for a backend. The zero value: nothing. Not safe for concurrent use.
type Parked struct {
	engine *Engine
	tokens int64
}

// Park counts a request with so many prefill tokens as waiting for an engine, and no longer for an earlier one.
func (p *Parked) Park(e *Engine, tokens int64) {
	p.Leave()
	p.engine, p.tokens = e, tokens
	e.parked.Add(tokens)
}

// Leave takes the request out again.
func (p *Parked) Leave() {
	if p.engine != nil {
		p.engine.parked.Add(-p.tokens)
		p.engine = nil
	}
}

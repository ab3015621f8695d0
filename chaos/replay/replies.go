package replay

import "container/list"

// maxReplyBytes bounds the kept answers: some minutes of a large fleet's output.
const maxReplyBytes = 256 << 20

// replies keeps the engines' answers, so that the next turn repeats them literally, as the engine
// has cached them. At the bound it drops the conversations that were silent longest. Not safe for
// concurrent use.
type replies struct {
	limit, held int
	byID        map[int]*list.Element
	order       *list.List
}

type conversation struct {
	id    int
	bytes int
	turns map[int]string
}

func newReplies(limit int) *replies {
	return &replies{limit: limit, byID: make(map[int]*list.Element), order: list.New()}
}

func (r *replies) put(session, turn int, text string) {
	e, ok := r.byID[session]
	if !ok {
		e = r.order.PushBack(&conversation{id: session, turns: make(map[int]string)})
		r.byID[session] = e
	}
	r.order.MoveToBack(e)
	c := e.Value.(*conversation)
	r.held += len(text) - len(c.turns[turn])
	c.bytes += len(text) - len(c.turns[turn])
	c.turns[turn] = text
	for r.held > r.limit {
		oldest := r.order.Front()
		c := oldest.Value.(*conversation)
		r.held -= c.bytes
		delete(r.byID, c.id)
		r.order.Remove(oldest)
	}
}

func (r *replies) get(session, turn int) (string, bool) {
	e, ok := r.byID[session]
	if !ok {
		return "", false
	}
	text, ok := e.Value.(*conversation).turns[turn]
	return text, ok
}

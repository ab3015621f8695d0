package proxy

import "grapevine/proxy/prompt"

// splice sets e.pieces to views of the body and of the inserted texts, which it copies, because the
// parser is released before the body is sent.
func (e *exchange) splice(edits []prompt.Edit) {
	e.inserted, e.pieces = e.inserted[:0], e.pieces[:0]
	at := 0
	for _, d := range edits {
		e.addPiece(e.body[at:d.From])
		from := len(e.inserted)
		e.inserted = append(e.inserted, d.Text...)
		e.addPiece(e.inserted[from:])
		at = d.To
	}
	e.addPiece(e.body[at:])
}

func (e *exchange) addPiece(p []byte) {
	if len(p) > 0 {
		e.pieces = append(e.pieces, p)
	}
}

func pieceBytes(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

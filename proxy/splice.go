package proxy

import "grapevine/proxy/prompt"

// splice makes e.pieces the body with the edits in it. The pieces are views of the body as it was
// received and of the inserted texts, so that an edit costs the same whatever the body's length. The
// edits' texts are copied, since they are the parser's, which is given back before the body is sent.
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

// pieceBytes is the length of a body given in pieces.
func pieceBytes(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

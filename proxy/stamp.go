package proxy

import (
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// Stamper gives requests session ids by which engines name them in their cache events. Safe for concurrent use; it must not block.
type Stamper interface {
	// Stamp notes that q goes to backend b, appends its session id to dst and says where the backend reads it. It notes and appends
	// nothing and returns NoCarrier if the backend publishes no events, or reads session ids from bodies only and inBody says that it
	// reads none from a body of this kind. It keeps nothing of q. The id is for Ended.
	Stamp(dst []byte, b prefixtree.Backend, q *policy.Request, inBody bool) (stamp []byte, id uint64, where events.Carrier)
	// Ended takes the tokens that the backend counted, -1 if not reported.
	Ended(b prefixtree.Backend, id uint64, tokens engine.Usage)
}

// stamped is the stamp of an attempt.
type stamped struct {
	where   events.Carrier
	backend prefixtree.Backend
	id      uint64
}

// stampFor names the request for the events of backend t and returns what to send. The session id of a client in the body would win,
// so its request gets none, and so does a prompt that begins with text stored at the engine.
func (e *exchange) stampFor(t *Target, pieces [][]byte, g *guard) [][]byte {
	g.stamped, e.stampHead = stamped{}, false
	if e.proxy.cfg.Stamper == nil || e.sessionAt == 0 || len(e.query.Marks) == 0 {
		return pieces
	}
	s := stamped{backend: t.ID}
	e.stamp, s.id, s.where = e.proxy.cfg.Stamper.Stamp(e.stamp[:0], t.ID, &e.query, sessionInBody(e.rec.Kind))
	if s.where == events.InBody {
		id := len(e.stamp)
		e.stamp = append(e.stamp, `"session_id":"`...)
		e.stamp = append(e.stamp, e.stamp[:id]...)
		e.stamp = append(e.stamp, `",`...)
		e.sent = withMember(e.sent[:0], pieces, e.sessionAt, e.stamp[id:])
		pieces = e.sent
	}
	g.stamped, e.stampHead = s, s.where == events.InHeader
	return pieces
}

// sessionInBody reports whether SGLang reads a session id from bodies of kind k.
func sessionInBody(k prompt.Kind) bool {
	return k == prompt.Chat || k == prompt.Completion || k == prompt.Generate
}

func (e *exchange) endStamped(g *guard, u engine.Usage) {
	if g.stamped.where != events.NoCarrier && u.PromptTokens > 0 {
		e.proxy.cfg.Stamper.Ended(g.stamped.backend, g.stamped.id, u)
	}
	g.stamped = stamped{}
}

// namesSession reports whether an engine may read a session id from a header of this name.
func namesSession(name []byte) bool {
	var scratch [longestKnown]byte
	known, _ := lower(&scratch, name)
	return string(known) == sessionHeaders[0]
}

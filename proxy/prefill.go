package proxy

import (
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/books"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// maxTransfer bounds, in bytes, a prefill backend's answer: it numbers the KV blocks of the prompt.
const maxTransfer = 4 << 20

// split is a request that a prefill and a decode backend may share.
type split struct {
	inside int          // offset of the body's first member
	prompt [][]byte     // the body for the prefill backend: views of body and inserted
	reply  [][]byte     // the body for the decode backend
	member []byte       // what tells the decode backend where the KV cache is; used once
	usage  engine.Usage // by the prefill backend
	pairs  int          // that failed
}

// transfers reports whether the decode backend fetches, or fetched, the KV cache.
func (s *split) transfers() bool { return len(s.member) > 0 }

func (s *split) reset() {
	s.forgetBodies()
	s.member, s.usage, s.pairs = reuse(s.member), engine.Unknown, 0
}

func (s *split) forgetBodies() {
	clear(s.prompt)
	clear(s.reply)
	s.prompt, s.reply = s.prompt[:0], s.reply[:0]
}

// splits reports whether to read bodies for what two backends can share. Clients that may control
// engines place the parts themselves.
func (p *Proxy) splits() bool { return p.cfg.Roles != nil && p.cfg.Roles() }

func needOf(kind prompt.Kind) policy.Need {
	switch kind {
	case prompt.Embeddings, prompt.CountTokens, prompt.Tokenize, prompt.Detokenize, prompt.Score, prompt.Rerank, prompt.Pooling:
		return policy.PromptOnly
	}
	return policy.Whole
}

func neededRoles(n policy.Need) string {
	switch n {
	case policy.Split:
		return "role both or decode; an SGLang engine of role decode needs one of role prefill"
	case policy.PromptOnly:
		return "a vLLM engine, or role both"
	}
	return "role both, or role decode on vLLM, because two engines cannot share it"
}

func (e *exchange) allowSplit(r *prompt.Request) {
	e.query.Need = policy.Split
	e.split.inside = r.Inside
	from := len(e.pieces)
	e.pieces = e.splice(e.pieces, r.Prefill)
	e.split.prompt = withMember(e.split.prompt[:0], e.pieces[from:], r.Inside, askTransfer)
	e.pieces = e.pieces[:from]
}

// askTransfer is what vLLM's own examples send: the null members are those that the answer fills.
var askTransfer = []byte(`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null},`)

// askedMember is where withMember puts the member.
const askedMember = 1

// withMember appends the pieces of a body with a first member, which ends with a comma.
func withMember(dst, pieces [][]byte, inside int, member []byte) [][]byte {
	dst = append(dst, pieces[0][:inside], member)
	return append(addPiece(dst, pieces[0][inside:]), pieces[1:]...)
}

// runWhole gives the request to one backend: parameters of a transfer are never used twice.
func (e *exchange) runWhole() {
	e.query.Need = policy.Whole
	e.split.member = e.split.member[:0]
}

// prefillElsewhere lets a prefill backend compute the prompt for the decode backend t, if that costs
// less. Without ready, t's attempt is withdrawn, and e.last says why.
func (e *exchange) prefillElsewhere(t *Target) (ready, settled bool) {
	if e.query.Need != policy.Split || t.Role != policy.Decode {
		return true, false
	}
	p, ok := e.proxy.cfg.Picker.PickPrefill(&e.query, &e.guard.attempt, &e.prefill.attempt)
	if !ok && t.Bootstrap != 0 {
		e.split.pairs = maxPairs // only other backends can help
		e.prefillFailed(books.Transfer)
		return false, false
	}
	if !ok {
		return true, false
	}
	e.prefill.open = true
	if t.Bootstrap != 0 {
		return e.startPair(&p)
	}
	began := time.Now()
	f, why := e.askPrefill(&p)
	e.rec.Prefill = PrefillRecord{Backend: p.Name, Decision: e.prefill.attempt.Decision(), Failed: f, Took: time.Since(began)}
	switch {
	case why != undisturbed && why != expired:
		e.close(&e.prefill, books.ClientGone, engine.Unknown)
		return false, e.cutShort(why)
	case f != books.None:
		e.prefillFailed(f)
		return false, false
	}
	e.close(&e.prefill, books.None, e.split.usage)
	if !e.split.transfers() {
		if e.proxy.mayWarn(&e.proxy.warned.noTransfer) {
			e.proxy.cfg.Log.Warn().Str("backend", p.Name).Msg("prefill backend answered without kv_transfer_params: start it with a KV connector, or give it the role both")
		}
		e.prefillFailed(books.Transfer)
		return false, false
	}
	e.split.reply = withMember(e.split.reply[:0], e.pieces, e.split.inside, e.split.member)
	return true, false
}

// askPrefill returns what failed, or why the request must stop, if not undisturbed.
func (e *exchange) askPrefill(p *Target) (books.Failure, reason) {
	timeouts := &e.tuned.Timeouts
	up, f, why := e.reach(p, e.split.prompt, &e.prefill, timeouts.StreamFirstByte, true)
	if up == nil {
		return f, why
	}
	response := &e.ctx.Response
	status, keep := response.StatusCode(), cleanResponse(&response.Header)
	if status != fasthttp.StatusOK || len(response.Header.ContentEncoding()) > 0 {
		if status == fasthttp.StatusTooManyRequests {
			e.wait = retryAfterOf(response)
		}
		return answeredFailure(status), e.release(up, false)
	}
	e.conn.arm(timeouts.Idle)
	if err := response.ReadBody(up.br, maxTransfer); err != nil {
		return e.lost(up)
	}
	body := response.Body()
	e.split.usage = engine.ParseUsage(body)
	if params := engine.TransferParams(body); params != nil {
		e.split.member = append(append(append(e.split.member[:0], `"kv_transfer_params":`...), params...), ',')
	}
	response.ResetBody()
	e.prefill.attempt.FirstToken(e.proxy.cfg.Picker.Now())
	return books.None, e.release(up, keep)
}

// An answer that is no failure of the backend's is one of the prefill alone: the request itself may
// be fine.
func answeredFailure(status int) books.Failure {
	switch {
	case status == fasthttp.StatusTooManyRequests:
		return books.Busy
	case status >= 500:
		return books.Status5xx
	}
	return books.Client4xx
}

func (e *exchange) prefillFailed(f books.Failure) {
	if e.prefill.open {
		e.close(&e.prefill, f, engine.Unknown)
	}
	e.guard.open = false
	e.guard.attempt.Withdraw(e.proxy.cfg.Picker.Now())
	e.rec.Attempts--
	e.rec.Prefill.Failed = f
	switch f {
	case books.Connect, books.Timeout, books.Reset, books.Status5xx:
		b := e.rec.Prefill.Decision.Backend
		e.blame(f, b)
		e.last.status = fasthttp.StatusBadGateway
		e.query.Exclude = append(e.query.Exclude, b)
	default:
		e.last.failed = books.Transfer
	}
}

// loseTransfer gives up a decode backend's answer that is an error: the KV cache did not arrive, or
// the request is at fault, which another answer will tell.
func (e *exchange) loseTransfer(up *upstreamConn) (settled bool) {
	if why := e.release(up, false); why != undisturbed && why != expired {
		return e.cutShort(why)
	}
	e.end(books.Transfer)
	e.rec.Prefill.Failed, e.last.failed = books.Transfer, books.Transfer
	return false
}

func (e *exchange) toSend() [][]byte {
	if e.split.transfers() {
		return e.split.reply
	}
	return e.pieces
}

package proxy

import (
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/prompt"
)

// reserve takes what the request may use from its client's limits, or refuses it. settle returns the
// rest.
func (e *exchange) reserve() bool {
	if e.client == nil {
		return true
	}
	promptTokens := 0
	if estimate := e.proxy.cfg.PromptTokens; estimate != nil && e.rec.Kind != prompt.Other {
		promptTokens = estimate(&e.query)
	}
	now := e.proxy.meter.Now()
	held, why := e.proxy.meter.Reserve(e.client, promptTokens, e.query.OutputHint, now)
	if why == clients.Admitted {
		e.held = held
		return true
	}
	e.rec.Limit = why.String()
	tokens := promptTokens + e.query.OutputHint
	s := e.proxy.meter.Standing(e.client, tokens, why, now)
	message := fmt.Sprintf("the API key may have %d requests in flight, and has %d: try again when one has ended", s.Limit, s.InFlight)
	if why == clients.Tokens {
		message = fmt.Sprintf("the API key may use %d tokens per minute; %d are left, and the request may need %d: try again in %v", s.TokenLimit, s.TokensLeft, tokens, s.Wait.Round(time.Millisecond))
	}
	e.deny(fault{fasthttp.StatusTooManyRequests, "rate_limit_exceeded", message})
	e.retryAfter(int((s.Wait + time.Second - 1) / time.Second))
	e.route = fasthttp.AppendUint(e.route[:0], int(s.Wait.Milliseconds()))
	e.ctx.Response.Header.SetBytesV(headerRetryMS, e.route)
	return false
}

// settle replaces what was reserved by what was used. An answer without usage counts as reserved. A request that an engine received,
// and whose client left before the answer, counts its estimated prompt. Other requests count nothing.
func (e *exchange) settle() {
	var s clients.Spent
	switch {
	case e.usage.PromptTokens >= 0:
		s.Prompt, s.Output = e.usage.PromptTokens, max(e.usage.OutputTokens, 0)
	case e.rec.Status == StatusClientGone && e.rec.Queue > 0:
		s.Prompt = -1
	case e.rec.Status > 0 && e.rec.Status < fasthttp.StatusBadRequest:
		s.Prompt, s.Output = -1, -1
	}
	e.proxy.meter.Release(&e.held, s, e.proxy.meter.Now())
}

// showLimits sends the headers of OpenAI's API.
func (e *exchange) showLimits() {
	c := e.client
	if c == nil || c.TokensPerMinute == 0 && c.InFlight == 0 {
		return
	}
	s := e.proxy.meter.Standing(c, 0, clients.Admitted, e.proxy.meter.Now())
	if c.InFlight > 0 {
		reset := time.Duration(0)
		if s.InFlight > 0 {
			reset = time.Second // when requests end is unknown
		}
		e.showLimit(&headersRequests, int64(s.Limit), int64(s.Left), reset)
	}
	if c.TokensPerMinute > 0 {
		e.showLimit(&headersTokens, s.TokenLimit, s.TokensLeft, s.TokensReset)
	}
}

type limitHeaders struct{ limit, remaining, reset string }

var (
	headersRequests = limitHeaders{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"}
	headersTokens   = limitHeaders{"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"}
)

func (e *exchange) showLimit(names *limitHeaders, limit, remaining int64, reset time.Duration) {
	h := &e.ctx.Response.Header
	e.route = fasthttp.AppendUint(e.route[:0], int(limit))
	h.SetBytesV(names.limit, e.route)
	e.route = fasthttp.AppendUint(e.route[:0], int(remaining))
	h.SetBytesV(names.remaining, e.route)
	e.route = appendReset(e.route[:0], reset)
	h.SetBytesV(names.reset, e.route)
}

// appendReset writes a duration as OpenAI does: 120ms, 7.5s, 6m0s.
func appendReset(dst []byte, d time.Duration) []byte {
	ms := int(d.Milliseconds())
	if ms > 0 && ms < 1000 {
		return append(fasthttp.AppendUint(dst, ms), "ms"...)
	}
	if ms >= 60_000 {
		dst = append(fasthttp.AppendUint(dst, ms/60_000), 'm')
		return append(fasthttp.AppendUint(dst, ms%60_000/1000), 's')
	}
	dst = fasthttp.AppendUint(dst, ms/1000)
	if tenth := ms % 1000 / 100; tenth > 0 {
		dst = append(dst, '.', byte('0'+tenth))
	}
	return append(dst, 's')
}

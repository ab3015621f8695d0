package proxy

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/prompt"
)

// identify finds the client of a request, or refuses it.
func (e *exchange) identify(kind prompt.Kind) bool {
	book := e.proxy.clients.Load()
	if book == nil {
		return true
	}
	e.client = clientOf(book, e.head.key)
	if e.client == nil {
		message := "the API key is unknown"
		if len(e.head.key) == 0 {
			message = "this router requires an API key: send Authorization: Bearer KEY or x-api-key: KEY"
		}
		e.deny(fault{fasthttp.StatusUnauthorized, "invalid_api_key", message})
		e.ctx.Response.Header.Set("WWW-Authenticate", "Bearer")
		return false
	}
	e.rec.Client = e.client.Name
	if !e.client.MayUsePath(e.path) {
		e.deny(fault{fasthttp.StatusForbidden, "path_not_allowed", "this API key may not use this path"})
		return false
	}
	if e.client.Trusted {
		id := e.head.id
		e.scan(kind, e.tuned.controls(e.client))
		e.head.id = id // it may be the router's own
	}
	return true
}

func clientOf(book *clients.Book, key []byte) *clients.Client {
	if len(key) == 0 {
		return book.Anonymous
	}
	return book.Find(key)
}

// clientOf finds the client of a request that has these headers; nil if there is none.
func (p *Proxy) clientOf(header func(name string) []byte) *clients.Client {
	book := p.clients.Load()
	if book == nil {
		return nil
	}
	key := keyIn([]byte("authorization"), header("Authorization"))
	if len(key) == 0 {
		key = keyIn([]byte("x-api-key"), header("X-Api-Key"))
	}
	return clientOf(book, key)
}

// mayUseModel refuses requests for other models or adapters, and those whose model the router cannot read.
func (e *exchange) mayUseModel() bool {
	switch {
	case e.client == nil || e.client.Models == nil || e.storedResponse():
		return true
	case len(e.rec.Model) == 0:
		e.deny(fault{fasthttp.StatusForbidden, "model_not_allowed", "this API key is limited to some models, and the request names none that the router can read"})
		return false
	case !e.client.MayUseModel(e.rec.Model): // not the one that a rule asks engines for
		e.deny(fault{fasthttp.StatusForbidden, "model_not_allowed", "this API key may not use the model " + quoted(e.rec.Model)})
		return false
	case e.adapters:
		e.deny(fault{fasthttp.StatusForbidden, "model_not_allowed", "this API key is limited to some models, so its requests may name one adapter only"})
		return false
	case len(e.query.LoRA) > 0 && !e.client.MayUseModel(e.query.LoRA):
		e.deny(fault{fasthttp.StatusForbidden, "model_not_allowed", "this API key may not use the adapter " + quoted(e.query.LoRA)})
		return false
	}
	return true
}

// storedResponse reports whether the request is about a response that an engine has stored: its id
// was given only to the client that made it.
func (e *exchange) storedResponse() bool { return bytes.HasPrefix(e.path, []byte("/v1/responses/")) }

// deny refuses a request that metrics and logs count.
func (e *exchange) deny(f fault) {
	e.last.refused = true
	e.refuse(f)
}

// keyIn returns the key in a header; name is in lower case.
func keyIn(name, value []byte) []byte {
	if string(name) == "x-api-key" {
		return value
	}
	const scheme = "Bearer "
	if len(value) > len(scheme) && bytes.EqualFold(value[:len(scheme)], []byte(scheme)) {
		return bytes.TrimSpace(value[len(scheme):])
	}
	return value // another scheme: no client has such a key
}

package proxy

import (
	"net/url"

	"github.com/valyala/fasthttp"
)

var modelsPath = []byte("/v1/models")

// serveModels answers /v1/models and /v1/models/{id} from Config.Models.
func (e *exchange) serveModels() {
	id, err := "", error(nil)
	if rest := e.path[len(modelsPath):]; len(rest) > 1 {
		id, err = url.PathUnescape(string(rest[1:]))
	}
	var body []byte
	if err == nil {
		body = e.proxy.cfg.Models(id)
	}
	switch {
	case body != nil:
		e.ctx.Response.Header.SetContentType("application/json")
		e.ctx.Response.SetBodyRaw(body)
		e.decorate()
	case len(e.path) <= len(modelsPath)+1:
		e.refuse(fault{fasthttp.StatusBadGateway, "upstream_unreachable", "no backend has told its models"})
	default:
		e.refuse(fault{fasthttp.StatusNotFound, "model_not_found", "no backend serves the model " + quoted(e.path[len(modelsPath)+1:])})
	}
}

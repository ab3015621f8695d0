package proxy

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/valyala/fasthttp"

	"grapevine.example/proxy/prompt"
)

// methods returns the Allow header of a path, "" if unknown.
func methods(path []byte) string {
	if prompt.KindOf(path) != prompt.Other {
		return "POST, OPTIONS"
	}
	switch string(path) {
	case "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations", "/v1/images/edits":
		return "POST, OPTIONS"
	case "/healthz", "/readyz":
		return "GET, HEAD"
	}
	if isModels(path) {
		return "GET, HEAD, OPTIONS"
	}
	switch id, cancel := responseOf(path); {
	case id == nil:
		return ""
	case cancel:
		return "POST, OPTIONS"
	}
	return "GET, HEAD, OPTIONS"
}

// responseOf returns the id in the path of a stored response, or nil.
func responseOf(path []byte) (id []byte, cancel bool) {
	rest, ok := bytes.CutPrefix(path, []byte("/v1/responses/"))
	if !ok {
		return nil, false
	}
	rest, cancel = bytes.CutSuffix(rest, []byte("/cancel"))
	if len(rest) == 0 || bytes.IndexByte(rest, '/') >= 0 {
		return nil, false
	}
	return rest, cancel
}

func isModels(path []byte) bool {
	rest, ok := bytes.CutPrefix(path, modelsPath)
	return ok && (len(rest) == 0 || rest[0] == '/')
}

// plainPath reports whether all parsers read path alike.
func plainPath(path []byte) bool {
	for _, c := range path {
		if c <= ' ' || c > '~' || c == '%' || c == '\\' || c == '#' || c == ';' {
			return false
		}
	}
	if bytes.Contains(path, []byte("//")) {
		return false
	}
	for segment := range bytes.SplitSeq(path, []byte("/")) {
		if string(segment) == "." || string(segment) == ".." {
			return false
		}
	}
	return true
}

// admit sets e.ownKey, false for PassPaths, or refuses the request.
func (e *exchange) admit(kind prompt.Kind) bool {
	e.ownKey = true
	if kind != prompt.Other {
		return true
	}
	if !plainPath(e.path) {
		e.refuse(fault{fasthttp.StatusBadRequest, "bad_path", "the path contains an escape, an empty segment or a dot segment: send it without them"})
		return false
	}
	allow := methods(e.path)
	for method := range strings.SplitSeq(allow, ", ") {
		if method == string(e.ctx.Method()) {
			return true
		}
	}
	e.ownKey = false
	for _, prefix := range e.tuned.PassPaths {
		if rest, ok := bytes.CutPrefix(e.path, []byte(strings.TrimSuffix(prefix, "/"))); ok && (len(rest) == 0 || rest[0] == '/') {
			return true
		}
	}
	if allow == "" {
		e.refuse(fault{fasthttp.StatusNotFound, "path_not_served", "this router does not serve this path; its operator can allow it with the setting pass_paths"})
		return false
	}
	e.refuse(fault{fasthttp.StatusMethodNotAllowed, "method_not_allowed", "this path does not accept the method; it accepts " + allow})
	e.ctx.Response.Header.Set("Allow", allow)
	return false
}

// CheckPassPath returns an error if prefix cannot be in Config.PassPaths.
func CheckPassPath(prefix string) error {
	if !strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "?") || !plainPath([]byte(prefix)) {
		return fmt.Errorf("%q must begin with / and contain no escapes, empty segments or dot segments", prefix)
	}
	return nil
}

var modelsPath = []byte("/v1/models")

package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func reply[T any](f func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			RefusalOf(err).write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		// The status line is sent: a failed write cannot be reported.
		_ = json.NewEncoder(w).Encode(v)
	}
}

func replyTo[B, T any](f func(*http.Request, *B) (T, error)) http.HandlerFunc {
	return reply(func(r *http.Request) (v T, err error) {
		body := new(B)
		if err := readBody(r, body); err != nil {
			return v, err
		}
		return f(r, body)
	})
}

func show[T any](f func() T) http.HandlerFunc {
	return reply(func(*http.Request) (T, error) { return f(), nil })
}

const maxAdminBody = raftstore.MaxCommandBytes

func readBody(r *http.Request, into any) error {
	// Browsers send forms and text across sites, but not this type.
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return Refuse(http.StatusUnsupportedMediaType, "Content-Type", "send Content-Type: application/json", "the body must be JSON")
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxAdminBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return Refuse(http.StatusRequestEntityTooLarge, "", "send it in parts", "the body is larger than %s", config.Bytes(maxAdminBody))
	case err != nil:
		return invalid("body", "", "%v", err)
	}
	return strictJSON(body, "", into)
}

// strictJSON decodes exactly one value without unknown fields.
func strictJSON(text []byte, place string, into any) error {
	if string(bytes.TrimSpace(text)) == "null" { // the decoder would accept it as no change
		return invalid(within(place, "body"), "send a JSON object", "is null")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return invalid(within(place, "body"), "send one JSON value", "something follows the value")
		}
		return nil
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return &Refusal{Status: http.StatusBadRequest, Place: within(place, "body"), Line: 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n")), Reason: "is no JSON: " + syntax.Error()}
	case errors.As(err, &kind):
		return invalid(within(place, kind.Field), "send a "+kind.Type.String(), "is a %s", kind.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return invalid(within(place, "body"), "send a JSON object", "ends too early")
	}
	text2 := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text2, "unknown field "); ok {
		return invalid(within(place, strings.Trim(name, `"`)), "see docs/openapi.yaml for the fields there are", "is an unknown field")
	}
	return invalid(within(place, "body"), "", "%s", text2)
}

// only rejects other query parameters, since a misspelt ?dryrun would apply the change, and requires
// that all but name are booleans.
func only(next http.HandlerFunc, parameters ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			invalid("query", "write NAME=VALUE&NAME=VALUE, escaped", "%v", err).write(w)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if !slices.Contains(parameters, name) {
				invalid(name, "see docs/openapi.yaml for the parameters there are", "is an unknown parameter").write(w)
				return
			}
			if name != "name" && !slices.Contains([]string{"", "0", "1", "false", "true"}, given.Get(name)) {
				invalid(name, "write "+name+"=true", "%q is neither true nor false", given.Get(name)).write(w)
				return
			}
		}
		next(w, r)
	}
}

// isSet reads a boolean parameter that only has checked; without a value it is true.
func isSet(r *http.Request, name string) bool {
	values, ok := r.URL.Query()[name]
	return ok && values[0] != "0" && values[0] != "false"
}

func within(place, field string) string { return strings.TrimPrefix(place+"."+field, ".") }

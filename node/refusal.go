package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"grapevine/node/config"
	"grapevine/raftstore"
)

// Refusal is the body of error answers of the admin API.
type Refusal struct {
	Reason string `json:"error"`
	// Place is the field, header or parameter at fault.
	Place string `json:"place,omitempty"`
	// Line is a line of a submitted text, from 1.
	Line int `json:"line,omitempty"`
	// Remedy is what the caller can do.
	Remedy string `json:"remedy,omitempty"`
	// More are further mistakes.
	More []Refusal `json:"more,omitempty"`

	status int
}

func (r *Refusal) Error() string {
	var b strings.Builder
	if r.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", r.Line)
	}
	if r.Place != "" && !strings.HasPrefix(r.Reason, r.Place) {
		b.WriteString(r.Place + ": ")
	}
	b.WriteString(r.Reason)
	if r.Remedy != "" {
		b.WriteString(": " + r.Remedy)
	}
	for i := range r.More {
		b.WriteString("\n" + r.More[i].Error())
	}
	return b.String()
}

func (r *Refusal) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	_ = json.NewEncoder(w).Encode(r) // the client may have left
}

func invalid(place, remedy, format string, args ...any) *Refusal {
	return &Refusal{status: http.StatusBadRequest, Place: place, Remedy: remedy, Reason: fmt.Sprintf(format, args...)}
}

func refusalOf(err error) *Refusal {
	var own *Refusal
	var cfg *config.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &cfg):
		return refusalOfConfig(err)
	}
	r := &Refusal{Reason: strings.TrimPrefix(err.Error(), "raftstore: "), status: http.StatusInternalServerError}
	switch {
	case errors.Is(err, raftstore.ErrInvalid):
		r.status = http.StatusBadRequest
	case errors.Is(err, raftstore.ErrNotFound):
		r.status, r.Remedy = http.StatusNotFound, "see what there is with GET"
	case errors.Is(err, raftstore.ErrExists):
		r.status, r.Remedy = http.StatusConflict, "change the one that exists, or take another name and URL"
	case errors.Is(err, raftstore.ErrConflict):
		r.status, r.Remedy = http.StatusConflict, "look at what it is now, and decide again"
	case errors.Is(err, raftstore.ErrTooMany):
		r.status, r.Remedy = http.StatusConflict, "remove what is not needed"
	case errors.Is(err, raftstore.ErrNoLeader):
		r.status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; see GET /raft (grapevine raft status)"
	case errors.Is(err, raftstore.ErrBarred):
		r.status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; docs/operate.md, \"Lose the majority\", has the procedure"
	case errors.Is(err, raftstore.ErrUncertain):
		r.status, r.Remedy = http.StatusGatewayTimeout, "look whether it was done; doing it again does no harm"
	case errors.Is(err, raftstore.ErrStopped), errors.Is(err, errNotStarted):
		r.status, r.Remedy = http.StatusServiceUnavailable, "ask another node"
	case errors.Is(err, errNotSaid):
		r.status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; ask again"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		r.status, r.Remedy = http.StatusGatewayTimeout, "this node is behind: ask again, or another one"
	}
	return r
}

func refusalOfConfig(err error) *Refusal {
	var all []Refusal
	for _, m := range config.Mistakes(err) {
		all = append(all, Refusal{Reason: m.Reason, Place: m.Key, Line: m.Line, Remedy: m.Remedy, status: http.StatusBadRequest})
	}
	first := all[0]
	first.More = all[1:]
	return &first
}

const maxAdminBody = raftstore.MaxCommandBytes

func readBody(w http.ResponseWriter, r *http.Request, into any) *Refusal {
	// Browsers send forms and text across sites, but not this type.
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return &Refusal{status: http.StatusUnsupportedMediaType, Reason: "the body must be JSON", Place: "Content-Type", Remedy: "send Content-Type: application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdminBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &Refusal{status: http.StatusRequestEntityTooLarge, Reason: fmt.Sprintf("the body is larger than %s", config.Bytes(maxAdminBody)), Remedy: "send it in parts"}
	case err != nil:
		return invalid("body", "", "%v", err)
	}
	return strictJSON(body, "", into)
}

// strictJSON decodes exactly one value without unknown fields.
func strictJSON(text []byte, place string, into any) *Refusal {
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
		return &Refusal{status: http.StatusBadRequest, Place: within(place, "body"), Line: 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n")), Reason: "is no JSON: " + syntax.Error()}
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

// only rejects requests with other query parameters; otherwise a misspelt ?dryrun would apply the
// change.
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
		}
		next(w, r)
	}
}

// isSet reads a boolean parameter; without a value it is true.
func isSet(r *http.Request, name string) (bool, *Refusal) {
	values, ok := r.URL.Query()[name]
	if !ok {
		return false, nil
	}
	switch values[0] {
	case "", "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, invalid(name, "write "+name+"=true", "%q is neither true nor false", values[0])
}

func within(place, field string) string {
	if place == "" {
		return field
	}
	return place + "." + field
}

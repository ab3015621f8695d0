package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"grapevine/node/config"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

type Refusal struct {
	Reason string `json:"error"`
	// Place is the field, header or parameter at fault.
	Place string `json:"place,omitempty"`
	// Line is a line of a submitted text, from 1.
	Line   int       `json:"line,omitempty"`
	Remedy string    `json:"remedy,omitempty"`
	More   []Refusal `json:"more,omitempty"`

	Status int `json:"-"`
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
	w.WriteHeader(r.Status)
	_ = json.NewEncoder(w).Encode(r) // the client may have left
}

func Refuse(status int, place, remedy, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Place: place, Remedy: remedy, Reason: fmt.Sprintf(format, args...)}
}

func invalid(place, remedy, format string, args ...any) *Refusal {
	return Refuse(http.StatusBadRequest, place, remedy, format, args...)
}

// RefusalOf maps an error of a Service to its HTTP answer.
func RefusalOf(err error) *Refusal {
	var own *Refusal
	var cfg *config.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &cfg):
		return refusalOfConfig(err)
	}
	r := &Refusal{Reason: strings.TrimPrefix(err.Error(), "raftstore: "), Status: http.StatusInternalServerError}
	switch {
	case errors.Is(err, policy.ErrNoBackend):
		r.Status = http.StatusServiceUnavailable
	case errors.Is(err, policy.ErrUnknownModel), errors.Is(err, ErrAlone):
		r.Status = http.StatusNotFound
	case errors.Is(err, raftstore.ErrInvalid):
		r.Status = http.StatusBadRequest
	case errors.Is(err, raftstore.ErrNotFound):
		r.Status, r.Remedy = http.StatusNotFound, "see what there is with GET"
	case errors.Is(err, raftstore.ErrExists):
		r.Status, r.Remedy = http.StatusConflict, "change the one that exists, or take another name and URL"
	case errors.Is(err, raftstore.ErrConflict):
		r.Status, r.Remedy = http.StatusConflict, "look at what it is now, and decide again"
	case errors.Is(err, raftstore.ErrTooMany):
		r.Status, r.Remedy = http.StatusConflict, "remove what is not needed"
	case errors.Is(err, raftstore.ErrNoLeader):
		r.Status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; see GET /raft (grapevine raft status)"
	case errors.Is(err, raftstore.ErrBarred):
		r.Status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; docs/operate.md, \"Lose the majority\", has the procedure"
	case errors.Is(err, raftstore.ErrUncertain):
		r.Status, r.Remedy = http.StatusGatewayTimeout, "look whether it was done; doing it again does no harm"
	case errors.Is(err, raftstore.ErrStopped), errors.Is(err, ErrNotStarted):
		r.Status, r.Remedy = http.StatusServiceUnavailable, "ask another node"
	case errors.Is(err, ErrNotProposed):
		r.Status, r.Remedy = http.StatusServiceUnavailable, "nothing was changed, and routing goes on; ask again"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		r.Status, r.Remedy = http.StatusGatewayTimeout, "this node is behind: ask again, or another one"
	}
	return r
}

func refusalOfConfig(err error) *Refusal {
	var all []Refusal
	for _, m := range config.Mistakes(err) {
		all = append(all, Refusal{Reason: m.Reason, Place: m.Key, Line: m.Line, Remedy: m.Remedy, Status: http.StatusBadRequest})
	}
	first := all[0]
	first.More = all[1:]
	return &first
}

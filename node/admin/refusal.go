package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
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
	r := Refuse(http.StatusInternalServerError, "", "", "%s", strings.TrimPrefix(err.Error(), "raftstore: "))
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			r.Status, r.Remedy = known.status, known.remedy
			break
		}
	}
	return r
}

// refusals are the answers to known errors; of an error that wraps several, the first counts.
var refusals = []struct {
	err    error
	status int
	remedy string
}{
	{policy.ErrNoBackend, http.StatusServiceUnavailable, ""},
	{policy.ErrUnknownModel, http.StatusNotFound, ""},
	{ErrAlone, http.StatusNotFound, ""},
	{raftstore.ErrInvalid, http.StatusBadRequest, ""},
	{raftstore.ErrNotFound, http.StatusNotFound, "see what there is with GET"},
	{raftstore.ErrExists, http.StatusConflict, "change the one that exists, or take another name and URL"},
	{raftstore.ErrConflict, http.StatusConflict, "look at what it is now, and decide again"},
	{raftstore.ErrTooMany, http.StatusConflict, "remove what is not needed"},
	{raftstore.ErrNoLeader, http.StatusServiceUnavailable, "nothing was changed, and routing goes on; see GET /raft (grapevine raft status)"},
	{raftstore.ErrBarred, http.StatusServiceUnavailable, "nothing was changed, and routing goes on; docs/operate.md, \"Lose the majority\", has the procedure"},
	{raftstore.ErrUncertain, http.StatusGatewayTimeout, "look whether it was done; doing it again does no harm"},
	{raftstore.ErrStopped, http.StatusServiceUnavailable, askAnother},
	{ErrNotStarted, http.StatusServiceUnavailable, askAnother},
	{ErrNotProposed, http.StatusServiceUnavailable, "nothing was changed, and routing goes on; ask again"},
	{context.DeadlineExceeded, http.StatusGatewayTimeout, behind},
	{context.Canceled, http.StatusGatewayTimeout, behind},
}

const (
	askAnother = "ask another node"
	behind     = "this node is behind: ask again, or another one"
)

func refusalOfConfig(err error) *Refusal {
	var all []Refusal
	for _, m := range config.Mistakes(err) {
		all = append(all, Refusal{Reason: m.Reason, Place: m.Key, Line: m.Line, Remedy: m.Remedy, Status: http.StatusBadRequest})
	}
	first := all[0]
	first.More = all[1:]
	return &first
}

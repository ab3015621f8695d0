package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func (s *Server) gossip(r *http.Request) (*GossipStatus, error) {
	if st := s.Service.GossipStatus(r.URL.Query().Get("facts") == "1"); st != nil {
		return st, nil
	}
	return nil, ErrAlone
}

func (s *Server) history(r *http.Request) (*History, error) {
	since := int64(0)
	if text := r.URL.Query().Get("since_ms"); text != "" {
		var err error
		if since, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, invalid("since_ms", "write Unix milliseconds", "%q is no number", text)
		}
	}
	return s.Service.History(isSet(r, "coarse"), time.UnixMilli(since)), nil
}

func (s *Server) explain(r *http.Request) (*Receipt, error) {
	limit := s.Running().MaxBody
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, int64(limit)))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, Refuse(http.StatusRequestEntityTooLarge, "body", "send a shorter one", "the body is larger than max_body, %s", limit)
	} else if err != nil {
		return nil, invalid("body", "", "%v", err)
	}
	if len(body) == 0 {
		return nil, invalid("body", "send that of the request to be explained", "there is no body")
	}
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	if !strings.HasPrefix(path, "/") {
		return nil, invalid("path", "write a path such as /v1/completions", "path %q does not begin with /", path)
	}
	header := func(name string) []byte {
		if v := r.Header.Get(name); v != "" {
			return []byte(v)
		}
		return nil
	}
	return s.Service.Explain(path, header, body)
}

func (s *Server) listBackends(r *http.Request) (*BackendList, error) {
	if isSet(r, "consistent") {
		if err := s.Service.CatchUp(r.Context()); err != nil {
			return nil, err
		}
	}
	return s.Service.BackendList(), nil
}

type newBackends struct {
	Backends []json.RawMessage `json:"backends"`
}

func (s *Server) addBackends(r *http.Request, body *newBackends) (*Changed, error) {
	list := make([]NewBackend, len(body.Backends))
	for i, text := range body.Backends {
		place := fmt.Sprintf("backends[%d]", i)
		if err := strictJSON(text, place, &list[i]); err != nil {
			return nil, err
		}
		if err := completeNew(&list[i], place); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, invalid("backends", `send {"backends":[{"url":"http://host:port"}]}`, "names none")
	}
	return s.Service.AddBackends(r.Context(), list, isSet(r, "force"))
}

func completeNew(b *NewBackend, place string) error {
	own := config.Backend{
		URL: b.URL, Name: b.Name, Models: b.Models, Weight: b.Weight, Role: b.Role.String(), BootstrapPort: int(b.BootstrapPort), Labels: b.Labels,
	}
	if err := own.Check(); err != nil {
		return invalid(place, "", "%v", err)
	}
	if b.KVTokens < 0 {
		return invalid(place+".kv_tokens", "leave it out to have the engine asked", "%d is negative", b.KVTokens)
	}
	engine := own.URL
	if config.Ranks(engine) >= 0 {
		engine, _, _ = strings.Cut(engine, "#") // the service takes all its ranks
	}
	if _, err := raftstore.NormalURL(engine); err != nil {
		return invalid(place+".url", "write http://host:port", "%v", err)
	}
	b.Name, b.URL, b.Weight, b.Source = own.Name, own.URL, own.Weight, raftstore.Admin
	return nil
}

type stateChange struct {
	Names  []string `json:"names"`
	Action string   `json:"action"`
	Reason string   `json:"reason,omitempty"`
}

var actions = map[string]raftstore.Action{
	"drain": raftstore.Drain, "resume": raftstore.Resume, "down": raftstore.MarkDown, "up": raftstore.MarkUp,
}

func (s *Server) setBackendState(r *http.Request, body *stateChange) (*Changed, error) {
	action, ok := actions[body.Action]
	if !ok {
		return nil, invalid("action", "write drain, resume, down or up", "%q is none", body.Action)
	}
	return s.Service.SetBackendState(r.Context(), body.Names, action, body.Reason, isSet(r, "force"))
}

type backendUpdate struct {
	IfVersion *uint64   `json:"if_version,omitempty"`
	URL       *string   `json:"url,omitempty"`
	Models    *[]string `json:"models,omitempty"`
	Weight    *float64  `json:"weight,omitempty"`
	KVTokens  *int64    `json:"kv_tokens,omitempty"`

	Role          *raftstore.Role `json:"role,omitempty"`
	BootstrapPort *uint16         `json:"bootstrap_port,omitempty"`
	Labels        *[]string       `json:"labels,omitempty"`
}

func (s *Server) updateBackend(r *http.Request, body *backendUpdate) (*Changed, error) {
	name := r.PathValue("name")
	switch {
	case body.Weight != nil && !(*body.Weight > 0):
		return nil, invalid("weight", "write a number above 0", "weight %v is none", *body.Weight)
	case body.KVTokens != nil && *body.KVTokens < 0:
		return nil, invalid("kv_tokens", "write 0 to have the engine asked", "%d is negative", *body.KVTokens)
	}
	if body.URL != nil {
		spec := NewBackend{Name: name, URL: *body.URL}
		if err := completeNew(&spec, "url"); err != nil {
			return nil, err
		}
		body.URL = &spec.URL
	}
	return s.Service.UpdateBackend(r.Context(), raftstore.UpdateBackend{
		Name: name, IfVersion: body.IfVersion, URL: body.URL, Models: body.Models, Weight: body.Weight, KVTokens: body.KVTokens,
		Role: body.Role, BootstrapPort: body.BootstrapPort, Labels: body.Labels,
	}, isSet(r, "force"))
}

func (s *Server) removeBackends(r *http.Request) (*Changed, error) {
	names := r.URL.Query()["name"]
	if len(names) == 0 || slices.Contains(names, "") {
		return nil, invalid("name", "write ?name=A&name=B", "names no backend")
	}
	return s.Service.RemoveBackends(r.Context(), names, isSet(r, "force"))
}

type rulesRequest struct {
	Text      string  `json:"text"`
	IfVersion *uint64 `json:"if_version,omitempty"`
}

func (s *Server) putRules(r *http.Request, body *rulesRequest) (*RuleChange, error) {
	dry := isSet(r, "dry_run")
	if _, err := config.ParseRules(body.Text); err != nil {
		return nil, refusalOfConfig(err)
	}
	now, err := s.Service.AgreedRules()
	if err != nil {
		return nil, err
	}
	out := &RuleChange{DryRun: dry, Difference: difference(now.Text, body.Text)}
	if dry {
		if body.IfVersion != nil && *body.IfVersion != now.Version {
			return nil, fmt.Errorf("%w: the rules have version %d, not %d", raftstore.ErrConflict, now.Version, *body.IfVersion)
		}
		out.Version, out.Changed.Changed = now.Version, out.Difference != ""
		return out, nil
	}
	done, err := s.Service.SetRules(r.Context(), body.Text, body.IfVersion)
	if err != nil {
		return nil, err
	}
	out.Changed = *done
	return out, nil
}

type transferRequest struct {
	To string `json:"to"` // name or raft id of a voter; empty: the most advanced one
}

func (s *Server) transfer(r *http.Request, body *transferRequest) (*RaftStatus, error) {
	return s.Service.TransferLeadership(r.Context(), body.To)
}

type switches struct {
	Enabled *bool `json:"enabled"`
}

func (s *Server) switchPrefixes(r *http.Request, body *switches) (*Changed, error) {
	if body.Enabled == nil {
		return nil, invalid("enabled", `send {"enabled":false}`, "is missing")
	}
	return s.Service.SwitchPrefixes(r.Context(), *body.Enabled)
}

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine/node/health"
	"grapevine/prefixtree"
	"grapevine/raftstore"
)

// Changed is the answer to every change.
type Changed struct {
	// Version is that of the change, or this node's current one if nothing changed.
	Version uint64 `json:"version"`
	// Changed is false if the state already was as requested.
	Changed bool `json:"changed"`
}

// change applies a command and waits until this node routes by it, so that the client's next
// request sees the change. It fails after changeWithin.
func (n *Node) change(ctx context.Context, c raftstore.Command) (*Changed, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	// Tests with slower Raft timers get as much more time.
	within, cancel := context.WithTimeout(ctx, changeWithin+n.raftTimers.Call)
	defer cancel()
	if err := n.awaitSaid(within, s); err != nil {
		return nil, err
	}
	result, err := s.Apply(within, c)
	if err != nil {
		return nil, err
	}
	if !result.Changed {
		return &Changed{Version: s.State().Version}, nil // no new version comes
	}
	n.awaitVersion(ctx, s, result.Index)
	return &Changed{Version: result.Index, Changed: true}, nil
}

// errNotSaid means that the configured backends are not committed yet.
var errNotSaid = errors.New("the configured backends could not be put to the fleet yet")

// awaitSaid waits for the configured backends: an earlier change would make all nodes route by a
// state without them.
func (n *Node) awaitSaid(ctx context.Context, s *raftstore.Store) error {
	select {
	case <-n.said:
		return nil
	default:
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := s.Read(asking) // finds out why the list waits: mostly missing voters
		answered <- err
	}()
	select {
	case <-n.said:
		return nil
	case <-ctx.Done():
	}
	if err := <-answered; err != nil {
		return fmt.Errorf("%w: %w", errNotSaid, err)
	}
	return errNotSaid
}

// ownWait bounds how long a lagging follower holds the answer to a change.
const ownWait = time.Second

func (n *Node) awaitVersion(ctx context.Context, s *raftstore.Store, version uint64) {
	ctx, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	for {
		changed := s.Changed()
		if s.State().Version >= version {
			n.adopt(s.State())
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// NewBackend is a backend as an operator adds it. Name defaults to host:port, weight to 1.
type NewBackend = raftstore.Backend

func completeNew(b *raftstore.Backend, place string) *Refusal {
	own := Backend{URL: b.URL, Name: b.Name, Models: b.Models, Weight: b.Weight}
	if err := own.Check(); err != nil {
		return invalid(place, "", "%v", err)
	}
	if b.KVTokens < 0 {
		return invalid(place+".kv_tokens", "leave it out to have the engine asked", "%d is negative", b.KVTokens)
	}
	if _, err := raftstore.NormalURL(own.URL); err != nil {
		return invalid(place+".url", "write http://host:port", "%v", err)
	}
	b.Name, b.URL, b.Weight, b.Source = own.Name, own.URL, own.Weight, raftstore.Admin
	return nil
}

const (
	// changeWithin, engine check included, makes a fleet without a majority answer within 2 s.
	changeWithin = 1900 * time.Millisecond
	// changeLeast, the time of an election, remains after a long engine check.
	changeLeast = 1200 * time.Millisecond
)

// changeBy is the deadline of a change requested at began and ready at now.
func changeBy(began, now time.Time) time.Time {
	by := began.Add(changeWithin)
	if least := now.Add(changeLeast); by.Before(least) {
		return least
	}
	return by
}

// addBackends adds all backends, or none.
func (n *Node) addBackends(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var body struct {
		Backends []json.RawMessage `json:"backends"`
	}
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	force, refused := isSet(r, "force")
	if refused != nil {
		refused.write(w)
		return
	}
	specs := make([]raftstore.Backend, len(body.Backends))
	for i, text := range body.Backends {
		place := fmt.Sprintf("backends[%d]", i)
		refused := strictJSON(text, place, &specs[i])
		if refused == nil {
			refused = completeNew(&specs[i], place)
		}
		if refused != nil {
			refused.write(w)
			return
		}
	}
	if len(specs) == 0 {
		invalid("backends", `send {"backends":[{"url":"http://host:port"}]}`, "names none").write(w)
		return
	}
	if refused := n.checkNew(r.Context(), specs, force); refused != nil {
		refused.write(w)
		return
	}
	ctx, cancel := context.WithDeadline(r.Context(), changeBy(began, time.Now()).Add(n.raftTimers.Call)) // see change
	defer cancel()
	n.answerPlaced(w, r.WithContext(ctx), raftstore.AddBackends{Backends: specs}, func(s *raftstore.State) string { return placeTaken(s, specs) })
}

func (n *Node) answerChange(w http.ResponseWriter, r *http.Request, c raftstore.Command) {
	n.answerPlaced(w, r, c, func(*raftstore.State) string { return "" })
}

// answerPlaced applies a command. On ErrExists and ErrNotFound the refusal names the field that
// place finds in this node's state.
func (n *Node) answerPlaced(w http.ResponseWriter, r *http.Request, c raftstore.Command, place func(*raftstore.State) string) {
	done, err := n.change(r.Context(), c)
	if err == nil {
		answer(w, done)
		return
	}
	refused := refusalOf(err)
	if s := n.store.Load(); s != nil && (errors.Is(err, raftstore.ErrExists) || errors.Is(err, raftstore.ErrNotFound)) {
		refused.Place = place(s.State())
	}
	refused.write(w)
}

// placeTaken is the field of the first name or URL in use, "" if none.
func placeTaken(s *raftstore.State, specs []raftstore.Backend) string {
	names, urls := make(map[string]bool), make(map[string]bool)
	for i := range s.Backends {
		names[s.Backends[i].Name], urls[s.Backends[i].URL] = true, true
	}
	for i := range specs {
		url, _ := raftstore.NormalURL(specs[i].URL) // checked by completeNew
		switch {
		case names[specs[i].Name]:
			return fmt.Sprintf("backends[%d].name", i)
		case urls[url]:
			return fmt.Sprintf("backends[%d].url", i)
		}
		names[specs[i].Name], urls[url] = true, true
	}
	return ""
}

// placeUnknown is the field of the first unknown name, "" if none.
func placeUnknown(s *raftstore.State, names []string, place func(i int) string) string {
	for i, name := range names {
		if _, ok := s.Backend(name); !ok {
			return place(i)
		}
	}
	return ""
}

// checkNew requires distinct gossip keys and, unless forced, engines that answer.
func (n *Node) checkNew(ctx context.Context, specs []raftstore.Backend, force bool) *Refusal {
	keys := make(map[uint32]string)
	for _, u := range n.backends.Roster().List {
		keys[prefixtree.BackendKey(u.Name)] = u.Name
	}
	for i, b := range specs {
		key := prefixtree.BackendKey(b.Name)
		if other, taken := keys[key]; taken && other != b.Name {
			return &Refusal{status: http.StatusConflict, Place: fmt.Sprintf("backends[%d].name", i), Remedy: "take another name",
				Reason: fmt.Sprintf("%s and %s have the same key %08x in gossip", b.Name, other, key)}
		}
		keys[key] = b.Name
	}
	if force {
		return nil
	}
	urls := make([]string, len(specs))
	for i := range specs {
		urls[i] = specs[i].URL
	}
	for i, err := range n.reach(ctx, specs) {
		if err != nil {
			return &Refusal{status: http.StatusUnprocessableEntity, Place: fmt.Sprintf("backends[%d].url", i), Remedy: "start it first, or add it all the same with force (--force)",
				Reason: fmt.Sprintf("no engine answers at %s: %v", urls[i], err)}
		}
	}
	return nil
}

// reachTimeout, for all new engines together, stays below clients' patience.
const reachTimeout = 4 * time.Second

const reachers = 64

// reach returns errors by index. Any answer below 500 passes; a 5xx may come from a proxy without
// an engine.
func (n *Node) reach(ctx context.Context, specs []raftstore.Backend) []error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	errs := make([]error, len(specs))
	slots := make(chan struct{}, reachers)
	var asked sync.WaitGroup
	for i := range specs {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = n.backends.Reach(ctx, specs[i])
		})
	}
	asked.Wait()
	return errs
}

type stateChange struct {
	Names  []string `json:"names"`
	Action string   `json:"action"`
	Reason string   `json:"reason,omitempty"`
}

var actions = map[string]raftstore.Action{
	"drain": raftstore.Drain, "resume": raftstore.Resume, "down": raftstore.MarkDown, "up": raftstore.MarkUp,
}

// setBackendState acts on all named backends, or on none.
func (n *Node) setBackendState(w http.ResponseWriter, r *http.Request) {
	var body stateChange
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	action, ok := actions[body.Action]
	if !ok {
		invalid("action", "write drain, resume, down or up", "%q is none", body.Action).write(w)
		return
	}
	for _, prefix := range []string{health.Prefix, gonePrefix} {
		if strings.HasPrefix(body.Reason, prefix) {
			invalid("reason", "write it another way", "%q begins reasons of the fleet's own, which end by themselves", prefix).write(w)
			return
		}
	}
	if action == raftstore.Drain || action == raftstore.MarkDown {
		if refused := n.checkLast(r, body.Names, "names", body.Action); refused != nil {
			refused.write(w)
			return
		}
	}
	if action == raftstore.Drain {
		n.hot.BeforeDrain(r.Context(), body.Names) // hot prefixes move first
	}
	n.answerPlaced(w, r, raftstore.SetBackendState{Names: body.Names, Action: action, Reason: body.Reason}, func(s *raftstore.State) string {
		return placeUnknown(s, body.Names, func(i int) string { return fmt.Sprintf("names[%d]", i) })
	})
}

// backendUpdate keeps omitted fields.
type backendUpdate struct {
	IfVersion *uint64   `json:"if_version,omitempty"`
	URL       *string   `json:"url,omitempty"`
	Models    *[]string `json:"models,omitempty"`
	Weight    *float64  `json:"weight,omitempty"`
	KVTokens  *int64    `json:"kv_tokens,omitempty"`
}

func (n *Node) updateBackend(w http.ResponseWriter, r *http.Request) {
	var body backendUpdate
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	force, refused := isSet(r, "force")
	if refused != nil {
		refused.write(w)
		return
	}
	name := r.PathValue("name")
	switch {
	case body.Weight != nil && !(*body.Weight > 0):
		refused = invalid("weight", "write a number above 0", "weight %v is none", *body.Weight)
	case body.KVTokens != nil && *body.KVTokens < 0:
		refused = invalid("kv_tokens", "write 0 to have the engine asked", "%d is negative", *body.KVTokens)
	}
	if refused != nil {
		refused.write(w)
		return
	}
	if body.URL != nil {
		spec := raftstore.Backend{Name: name, URL: *body.URL}
		refused := completeNew(&spec, "url")
		if refused == nil && !force {
			if err := n.reach(r.Context(), []raftstore.Backend{spec})[0]; err != nil {
				refused = &Refusal{status: http.StatusUnprocessableEntity, Place: "url", Remedy: "start it first, or change it all the same with force",
					Reason: fmt.Sprintf("no engine answers at %s: %v", spec.URL, err)}
			}
		}
		if refused != nil {
			refused.write(w)
			return
		}
		body.URL = &spec.URL
	}
	n.answerChange(w, r, raftstore.UpdateBackend{
		Name: name, IfVersion: body.IfVersion, URL: body.URL, Models: body.Models,
		Weight: body.Weight, KVTokens: body.KVTokens,
	})
}

// removeBackends removes all named backends, or none.
func (n *Node) removeBackends(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["name"]
	if len(names) == 0 || slices.Contains(names, "") {
		invalid("name", "write ?name=A&name=B", "names no backend").write(w)
		return
	}
	if refused := n.checkLast(r, names, "name", "removal"); refused != nil {
		refused.write(w)
		return
	}
	n.answerPlaced(w, r, raftstore.RemoveBackends{Names: names}, func(s *raftstore.State) string {
		return placeUnknown(s, names, func(int) string { return "name" })
	})
}

// listBackends with consistent includes every change confirmed before the request.
func (n *Node) listBackends(w http.ResponseWriter, r *http.Request) {
	consistent, refused := isSet(r, "consistent")
	if refused != nil {
		refused.write(w)
		return
	}
	if consistent {
		s, err := n.agreement()
		if err == nil {
			var state *raftstore.State
			if state, err = s.Read(r.Context()); err == nil {
				n.adopt(state)
			}
		}
		if err != nil {
			refusalOf(err).write(w)
			return
		}
	}
	answer(w, n.BackendList())
}

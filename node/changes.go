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
	// Version is that of the state in which the change is; that of the state which
	// the node that was asked has if there was nothing to change.
	Version uint64 `json:"version"`
	// Changed is false if everything was so already.
	Changed bool `json:"changed"`
}

// change applies a command and waits until this node goes by it, so that who
// asks the same node next sees it. Whatever has to be waited for before that, it has failed within changeWithin.
func (n *Node) change(ctx context.Context, c raftstore.Command) (*Changed, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	// Raft's timers are set in tests alone: those that are patient with a change are so here.
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
		return &Changed{Version: s.State().Version}, nil // nothing will come that could be waited for
	}
	n.awaitVersion(ctx, s, result.Index)
	return &Changed{Version: result.Index, Changed: true}, nil
}

// errNotSaid is returned for changes of a fleet that has not heard of this node's own list. The store's error that is wrapped beside it says why.
var errNotSaid = errors.New("the configured backends could not be put to the fleet yet")

// awaitSaid waits until the configured backends have been put to the fleet, or ctx ends. A change that came before would make a state of it in
// which they are missing, and by that all nodes would route: requests would be refused until the list had come, too.
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
		_, err := s.Read(asking) // finds out beside the wait what the list waits for: who is missing, mostly
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

// ownWait bounds how long the answer to a change is held until the node that was
// asked has it itself; it is a follower then, and far behind.
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

// NewBackend is a backend as an operator adds it. The name is host:port of the URL if it is empty; a weight of 0 is 1.
type NewBackend = raftstore.Backend

// completeNew checks a backend that an operator adds, and fills in what was left out.
func completeNew(b *raftstore.Backend, place string) *Refusal {
	own := Backend{URL: b.URL, Name: b.Name, Models: b.Models, Weight: b.Weight}
	if err := own.check(); err != nil {
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
	// changeWithin is how long a change may take, with the look at engines before
	// it, until it has failed: a fleet without a majority says so within 2 s.
	changeWithin = 1900 * time.Millisecond
	// changeLeast is what is left to it after a long look: an election's time.
	changeLeast = 1200 * time.Millisecond
)

// changeBy is until when a change may try that was asked for at began and begins now.
func changeBy(began, now time.Time) time.Time {
	by := began.Add(changeWithin)
	if least := now.Add(changeLeast); by.Before(least) {
		return least
	}
	return by
}

// addBackends answers POST /backends: all are added, or none.
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

// answerPlaced makes a change and answers what became of it. place finds where in the
// request that is which the fleet has, or has not: the refusal names it, and is the
// leader's, who may know of a newer state than this node.
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

// placeTaken is the first of new backends whose name or URL a state, or another of
// them, has; "" if none.
func placeTaken(s *raftstore.State, specs []raftstore.Backend) string {
	names, urls := make(map[string]bool), make(map[string]bool)
	for i := range s.Backends {
		names[s.Backends[i].Name], urls[s.Backends[i].URL] = true, true
	}
	for i := range specs {
		url, _ := raftstore.NormalURL(specs[i].URL) // it was checked
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

// placeUnknown is the first of some names that a state does not have; "" if it has all.
func placeUnknown(s *raftstore.State, names []string, place func(i int) string) string {
	for i, name := range names {
		if _, ok := s.Backend(name); !ok {
			return place(i)
		}
	}
	return ""
}

// checkNew finds what the store cannot know of new backends: names that gossip
// cannot tell apart, and engines that nobody answers for.
func (n *Node) checkNew(ctx context.Context, specs []raftstore.Backend, force bool) *Refusal {
	keys := make(map[uint32]string)
	for _, u := range n.fleet.roster().list {
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

// reachTimeout bounds the look at all new engines together, below the patience of
// whoever asks.
const reachTimeout = 4 * time.Second

// reachers bounds how many are looked at at once.
const reachers = 64

// reach asks every one of the backends something, as this node would, and says
// what keeps it from answering. What it answers is no matter, unless it is that
// something in front of it has no engine.
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
			errs[i] = n.reachOne(ctx, &specs[i])
		})
	}
	asked.Wait()
	return errs
}

// lists says whether the configuration has a backend of that name at that URL.
func (c *Config) lists(name, url string) bool {
	return slices.ContainsFunc(c.Backends, func(b Backend) bool { return b.Name == name && sameURL(b.URL, url) })
}

// reachOne sends the api_key that is configured for a name only to where that is
// configured to be: otherwise whoever can ask for a change could have it sent
// anywhere, even by one that is refused.
func (n *Node) reachOne(ctx context.Context, spec *raftstore.Backend) error {
	own := n.fleet.localOf(spec.Name)
	if !n.cfg.lists(spec.Name, spec.URL) {
		own.apiKey = "" // a refusal is an answer, too, and nothing has been agreed on yet
	}
	b := Backend{URL: spec.URL, Name: spec.Name}
	_, host, _, secure := b.address()
	l := n.fleet.newLink(b.URL, own, host, secure)
	defer l.client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+"/v1/models", nil)
	if err != nil {
		return err
	}
	if own.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+own.apiKey)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("it says %s", resp.Status)
	}
	return nil
}

// stateChange is the body of PATCH /backends.
type stateChange struct {
	Names  []string `json:"names"`
	Action string   `json:"action"`
	Reason string   `json:"reason,omitempty"`
}

var actions = map[string]raftstore.Action{
	"drain": raftstore.Drain, "resume": raftstore.Resume, "down": raftstore.MarkDown, "up": raftstore.MarkUp,
}

// setBackendState answers PATCH /backends: one action on all of the named, or on none.
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
		n.hot.leave(r.Context(), body.Names) // hot prefixes move first
	}
	n.answerPlaced(w, r, raftstore.SetBackendState{Names: body.Names, Action: action, Reason: body.Reason}, func(s *raftstore.State) string {
		return placeUnknown(s, body.Names, func(i int) string { return fmt.Sprintf("names[%d]", i) })
	})
}

// backendUpdate is the body of PATCH /backends/NAME: what is left out stays.
type backendUpdate struct {
	IfVersion *uint64   `json:"if_version,omitempty"`
	URL       *string   `json:"url,omitempty"`
	Models    *[]string `json:"models,omitempty"`
	Weight    *float64  `json:"weight,omitempty"`
	KVTokens  *int64    `json:"kv_tokens,omitempty"`
}

// updateBackend answers PATCH /backends/NAME.
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
			if err := n.reachWithin(r.Context(), &spec); err != nil {
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

func (n *Node) reachWithin(ctx context.Context, spec *raftstore.Backend) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return n.reachOne(ctx, spec)
}

// removeBackends answers DELETE /backends?name=A&name=B: all are removed, or none.
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

// listBackends answers GET /backends. With consistent, the answer holds every
// change that was confirmed anywhere before it was asked for.
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

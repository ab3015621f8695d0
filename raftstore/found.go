package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	askTimeout = 500 * time.Millisecond
	// lookTimeout bounds one look with all its requests.
	lookTimeout = 10 * time.Second
)

type info struct {
	ID        string    `json:"id"`
	Format    int       `json:"format"` // newest commandFormat understood
	Group     groupID   `json:"group"`
	Member    bool      `json:"member"` // of Group; false for a promise
	Founder   string    `json:"founder,omitempty"`
	Given     []groupID `json:"given,omitempty"` // Group was recovered from these
	Size      int       `json:"size,omitempty"`  // servers of the recovery
	Proven    bool      `json:"proven"`          // a member in service
	Expect    int       `json:"expect"`
	Server    bool      `json:"server"`
	Constants Constants `json:"constants"`
	LastIndex uint64    `json:"last_index"`
	Leader    string    `json:"leader,omitempty"`
	Failed    string    `json:"failed,omitempty"`
}

func (s *Store) info() info {
	l := s.current()
	s.mu.Lock()
	i := info{
		ID: s.id, Format: commandFormat, Group: s.ident.Group, Member: s.ident.member(), Founder: s.ident.Founder,
		Given: s.ident.Given, Size: s.ident.Size, Proven: s.ident.member() && !s.ident.Unproven,
		Expect: s.cfg.Expect, Server: s.cfg.Server, Constants: s.cfg.Constants, Failed: s.problem.disk,
	}
	if i.Failed == "" {
		i.Failed = s.problem.halted
	}
	s.mu.Unlock()
	if l != nil {
		i.LastIndex = l.raft.LastIndex()
		i.Leader = s.leader(l).ID
		if err := l.failure(); err != nil && i.Failed == "" {
			i.Failed = "disk failed: " + err.Error()
		}
	}
	return i
}

func (s *Store) askInfo(ctx context.Context, addr string) (info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var i info
	err := s.caller.ask(ctx, addr, askInfo, nil, &i)
	return i, err
}

type answered struct {
	Peer
	info info
	err  error
}

func (s *Store) askAll(ctx context.Context, peers []Peer) []answered {
	list := make([]answered, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			list[i].Peer = p
			list[i].info, list[i].err = s.askInfo(ctx, p.Addr)
		})
	}
	wg.Wait()
	return list
}

type promiseRequest struct {
	Group   groupID `json:"group"`
	Founder string  `json:"founder"`
	Addr    string  `json:"addr"`
}

type joinRequest struct {
	Group     groupID   `json:"group"`
	Leader    string    `json:"leader"`
	Format    int       `json:"format"`
	Constants Constants `json:"constants"`
	Given     []groupID `json:"given,omitempty"` // see info
	Size      int       `json:"size,omitempty"`
}

// found lets the candidate with the lowest id found a group. It needs answers from all live nodes,
// none of which may have a group, and durable promises of all other founders. A node promises to
// one founder, so overlapping founder lists cannot both succeed.
func (s *Store) found(ctx context.Context, l *life) {
	why, err := s.tryFound(ctx, l)
	if err != nil {
		s.log.Warn().Err(err).Msg("no group was founded")
		why = err.Error()
	}
	if s.waitFor(why) && why != "" {
		s.log.Info().Str("for", why).Msg("waiting for a group")
	}
}

func (s *Store) tryFound(ctx context.Context, l *life) (waiting string, err error) {
	id := s.identity()
	switch {
	case id.member():
		return "for the leader of group " + id.Group.String(), nil
	case s.cfg.Expect <= 1 && s.cfg.Join:
		return "for a leader to take this node in", nil
	case s.cfg.Expect <= 1:
		return "", s.bootstrap(l, newGroup(), []raft.Server{s.self()})
	}
	founders, waiting := s.founders(ctx)
	if waiting != "" {
		return waiting, nil
	}
	if founders[0].ID != s.id {
		return fmt.Sprintf("for %s to found the group", founders[0].Name), nil
	}
	group, err := s.promiseSelf()
	if err != nil || group == (groupID{}) {
		return "for another founder, who asked first", err
	}
	req := promiseRequest{Group: group, Founder: s.id, Addr: s.addr}
	servers := []raft.Server{s.self()}
	for _, f := range founders[1:] {
		askCtx, cancel := context.WithTimeout(ctx, 2*askTimeout+s.cfg.Timers.Write)
		err := s.caller.ask(askCtx, f.Addr, askPromise, req, nil)
		cancel()
		if err != nil {
			return fmt.Sprintf("for %s to promise its help: %v", f.Name, err), nil
		}
		servers = append(servers, raft.Server{ID: raft.ServerID(f.ID), Address: raft.ServerAddress(f.Addr)})
	}
	return "", s.bootstrap(l, group, servers)
}

func (s *Store) self() raft.Server {
	return raft.Server{ID: raft.ServerID(s.id), Address: raft.ServerAddress(s.addr)}
}

// founders returns the Config.Expect lowest candidates, or what to wait for.
func (s *Store) founders(ctx context.Context) (list []Peer, waiting string) {
	var peers []Peer
	for _, p := range s.peers() {
		if p.Alive && !p.Left {
			peers = append(peers, p)
		}
	}
	all := []Peer{{ID: s.id, Name: "this node", Addr: s.addr}}
	seen := []string{"this node"}
	for _, a := range s.askAll(ctx, peers) {
		name := a.Name
		if name == "" {
			name = a.Addr
		}
		switch {
		case a.err != nil:
			return nil, fmt.Sprintf("for an answer of %s: %v", name, a.err)
		case a.info.Member:
			return nil, fmt.Sprintf("to be taken into the group of %s (%s)", name, a.info.Group)
		case mismatch(s.cfg.Constants, a.info.Constants) != nil:
			return nil, fmt.Sprintf("%s: %v", name, mismatch(a.info.Constants, s.cfg.Constants))
		case !a.Server || a.Expect != 0 && a.Expect != s.cfg.Expect:
			// gossip says that the peer is no candidate
		case a.info.Server && a.info.Expect == s.cfg.Expect && a.info.Failed == "":
			all = append(all, Peer{ID: a.info.ID, Name: name, Addr: a.Addr})
			seen = append(seen, name)
		}
	}
	if len(all) < s.cfg.Expect {
		slices.Sort(seen[1:])
		return nil, fmt.Sprintf("for %d nodes that may vote and expect as many, and sees %d: %s",
			s.cfg.Expect, len(all), strings.Join(seen, ", "))
	}
	slices.SortFunc(all, func(a, b Peer) int { return strings.Compare(a.ID, b.ID) })
	all = all[:s.cfg.Expect]
	for i := 1; i < len(all); i++ {
		if all[i-1].ID == all[i].ID {
			return nil, fmt.Sprintf("for two nodes with the same id %s to be told apart: was a data directory copied?", all[i].ID)
		}
	}
	if !slices.ContainsFunc(all, func(p Peer) bool { return p.ID == s.id }) {
		return nil, "for the group that others found"
	}
	return all, ""
}

// promiseSelf draws and stores a group; zero if this node has promised or joined already.
func (s *Store) promiseSelf() (groupID, error) {
	s.identMu.Lock()
	defer s.identMu.Unlock()
	switch now := s.identity(); {
	case now.Founder == s.id:
		return now.Group, nil
	case now.Group != groupID{}:
		return groupID{}, nil
	}
	group := newGroup()
	return group, s.setIdentity(identity{ID: s.id, Group: group, Founder: s.id, FounderAddr: s.addr})
}

// setIdentity stores an identity before use. The caller holds identMu.
func (s *Store) setIdentity(id identity) error {
	l := s.current()
	if l == nil {
		return errLinkClosed
	}
	if err := saveIdentity(l.disk, id); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.ident.Group
	s.ident = id
	s.mu.Unlock()
	if old != id.Group && l.link != nil {
		l.link.sever()
	}
	return nil
}

func (s *Store) bootstrap(l *life, group groupID, servers []raft.Server) error {
	s.identMu.Lock()
	defer s.identMu.Unlock()
	if len(servers) == 1 {
		if err := s.setIdentity(identity{ID: s.id, Group: group, Founder: s.id}); err != nil {
			return err
		}
	}
	if now := s.identity(); now.Group != group || now.Founder != s.id {
		return nil // promised elsewhere in the meantime
	}
	if err := l.raft.BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	s.log.Info().Str("group", group.String()).Int("servers", len(servers)).Msg("group founded")
	return s.setIdentity(identity{ID: s.id, Group: group})
}

// settle ends a promise: a configuration in raft proves that the group was founded.
func (s *Store) settle(l *life) {
	if id := s.identity(); id.Group == (groupID{}) || id.member() || len(l.servers()) == 0 {
		return
	}
	s.identMu.Lock()
	defer s.identMu.Unlock()
	// tend handles disk failures.
	_ = s.setIdentity(identity{ID: s.id, Group: s.identity().Group})
	s.waitFor("")
}

// waitFor reports whether the text is new.
func (s *Store) waitFor(what string) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news = s.waiting != what
	s.waiting = what
	return news
}

// committed says that this node voted or has a log, so it cannot change groups.
func committed(l *life) bool {
	return l.raft.CurrentTerm() > 0 || l.raft.LastIndex() > 0
}

func (s *Store) promise(ctx context.Context, req promiseRequest) error {
	if req.Group == (groupID{}) || req.Founder == "" || req.Founder == s.id {
		return errors.New("the request names no group or founder")
	}
	id := s.identity()
	if id.Founder != "" && id.Founder != req.Founder && id.Founder != s.id {
		if err := s.released(ctx, id); err != nil {
			return err
		}
	}
	s.identMu.Lock()
	defer s.identMu.Unlock()
	now, l := s.identity(), s.current()
	switch {
	case l == nil:
		return errLinkClosed
	case now.Group == req.Group:
		return nil
	case now.member(), committed(l):
		return fmt.Errorf("this node belongs to group %s", now.Group)
	case now.Founder == s.id && s.id < req.Founder:
		return fmt.Errorf("%s itself is about to found a group", s.id)
	case now.Founder != id.Founder:
		return fmt.Errorf("promised to %s meanwhile", now.Founder)
	}
	return s.setIdentity(identity{ID: s.id, Group: req.Group, Founder: req.Founder, FounderAddr: req.Addr})
}

// released returns why a promise still holds; nil if the founder gave the group up or is gone.
func (s *Store) released(ctx context.Context, id identity) error {
	info, err := s.askInfo(ctx, id.FounderAddr)
	switch {
	case err == nil && info.ID == id.Founder && info.Group == id.Group:
		return fmt.Errorf("promised to %s", id.Founder)
	case err == nil:
		return nil
	}
	for _, p := range s.peers() {
		if p.Alive && (p.ID == id.Founder || p.Addr == id.FounderAddr) {
			return fmt.Errorf("promised to %s, which does not answer: %w", id.Founder, err)
		}
	}
	return nil
}

func (s *Store) join(ctx context.Context, req joinRequest) error {
	if req.Group == (groupID{}) {
		return errors.New("the request names no group")
	}
	if len(req.Given) > maxGiven {
		return fmt.Errorf("the request names %d groups that were given up, at most %d are possible", len(req.Given), maxGiven)
	}
	if req.Format > commandFormat {
		return fmt.Errorf("the group's log has format %d, this program knows %d", req.Format, commandFormat)
	}
	if s.cfg.Constants != (Constants{}) && req.Constants != (Constants{}) {
		if err := mismatch(req.Constants, s.cfg.Constants); err != nil {
			s.differ(err)
			return err
		}
	}
	id := s.identity()
	if id.Founder != "" && id.Founder != s.id && id.Group != req.Group {
		if err := s.released(ctx, id); err != nil {
			return err
		}
	}
	s.identMu.Lock()
	defer s.identMu.Unlock()
	now, l := s.identity(), s.current()
	switch {
	case now.Group == req.Group && now.member():
		return nil
	case l == nil:
		return errLinkClosed
	case now.Group != req.Group && (now.member() || committed(l)):
		return fmt.Errorf("this node belongs to group %s already, and would lose what that has agreed on", now.Group)
	case now.Founder != id.Founder:
		return fmt.Errorf("promised to %s meanwhile", now.Founder)
	}
	if err := s.setIdentity(identity{ID: s.id, Group: req.Group, Given: req.Given, Size: req.Size}); err != nil {
		return err
	}
	s.waitFor("")
	s.log.Info().Str("group", req.Group.String()).Str("leader", req.Leader).Msg("taken into a group")
	return nil
}

// admits returns why another node's raft is refused.
func (s *Store) admits(h hello) error {
	if original, ok := s.originalOf(h); ok {
		s.noteClone(h, original)
		return fmt.Errorf("the raft id %s is that of %s, which is alive: %s; %s", h.id, original.where(), cloned, cloneRemedy)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.life == nil || s.life.link == nil:
		return errLinkClosed
	case s.ident.Group == groupID{}:
		return errors.New("in no group")
	case s.ident.Group != h.group:
		return fmt.Errorf("of another group: %s, not %s", s.ident.Group, h.group)
	}
	return nil
}

func (s *Store) takeRaft(c *conn) error {
	l := s.current()
	if l == nil || l.link == nil {
		return errLinkClosed
	}
	if c.hello.group != s.group() {
		return errors.New("of another group")
	}
	return l.link.take(c)
}

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const waitLogPause = 3 * time.Second

const sameFounders = "give every founder the same list"

// found founds this node's group or notes what it waits for.
func (s *Store) found(ctx context.Context, inst *raftInstance) {
	waiting, err := s.tryFound(ctx, inst)
	if err != nil {
		waiting = "to try again: " + err.Error()
	}
	s.waitFor(waiting, "waiting for a group")
}

func (s *Store) tryFound(ctx context.Context, inst *raftInstance) (waiting string, err error) {
	id := s.identity()
	switch {
	case len(id.Founding) > 0: // the process ended before raft had these servers
		return "for the leader of group " + id.Group.String(), s.bootstrap(inst, id.Group, id.Founding)
	case id.Group != groupID{}:
		return "for the leader of group " + id.Group.String(), nil
	case len(s.cfg.Founders) == 0 && s.cfg.Join:
		return "for a leader to take this node in", nil
	case s.port != nil && !s.cfg.Met():
		return "to meet the other nodes", nil
	}
	group, servers, waiting := s.founding(s.askFounders(ctx))
	if waiting != "" {
		return waiting, nil
	}
	return "", s.bootstrap(inst, group, servers)
}

// askFounders asks the other founders and all live peers. listed says whether this node is a
// founder, perhaps by another name of its address.
func (s *Store) askFounders(ctx context.Context) (answers []answered, listed bool) {
	listed = len(s.cfg.Founders) == 0
	names := make(map[string]string)
	var nodes []Peer
	for _, p := range s.peers() {
		names[p.Addr] = p.Name
		if p.Alive && !p.Left && !slices.Contains(s.cfg.Founders, p.Addr) {
			nodes = append(nodes, p)
		}
	}
	for _, addr := range s.cfg.Founders {
		listed = listed || addr == s.addr
		if addr != s.addr {
			nodes = append(nodes, Peer{Name: names[addr], Addr: addr})
		}
	}
	answers = slices.DeleteFunc(s.askAll(ctx, nodes), func(a answered) bool {
		self := a.err == nil && a.info.ID == s.id && a.info.Addr == s.addr
		listed = listed || self
		return self
	})
	return answers, listed
}

// founding returns the group that this node may found, with its servers, or what to wait for. Every
// node must answer; then each founder computes the same group. If some have a group, this node
// follows only if it is in that group's Founding.
func (s *Store) founding(answers []answered, listed bool) (group groupID, servers []Server, waiting string) {
	var silent []string
	for _, a := range answers {
		switch {
		case a.err != nil:
			silent = append(silent, fmt.Sprintf("%s (%v)", a.where(), a.err))
		case a.info.Group == groupID{}:
		case group != groupID{} && group != a.info.Group:
			return group, nil, fmt.Sprintf("for the operator: there are two groups, %s and %s, and %s is in the latter: %s", group, a.info.Group, a.where(), giveOneUp)
		case !slices.ContainsFunc(a.info.Founding, func(f Server) bool { return f.ID == s.id }):
			return group, nil, fmt.Sprintf("to be taken into the group of %s (%s)", a.where(), a.info.Group)
		default:
			group, servers = a.info.Group, a.info.Founding
		}
	}
	switch {
	case len(silent) > 0:
		return group, nil, "for an answer of " + strings.Join(silent, ", ")
	case group != groupID{}:
		return group, servers, ""
	case !listed:
		return group, nil, fmt.Sprintf("for the operator: no address of founders %v leads to this node (%s): %s, and set the address that others reach", s.cfg.Founders, s.addr, sameFounders)
	}
	servers = []Server{{ID: s.id, Addr: s.addr, Voter: true}}
	for _, a := range answers {
		founder := slices.Contains(s.cfg.Founders, a.Addr)
		switch {
		case mismatch(s.cfg.Constants, a.info.Constants) != nil:
			return group, nil, fmt.Sprintf("for the operator: %s: %v", a.where(), mismatch(a.info.Constants, s.cfg.Constants))
		case (founder || len(a.info.Founders) > 0) && !slices.Equal(a.info.Founders, s.cfg.Founders):
			return group, nil, fmt.Sprintf("for the operator: %s has founders %v, this node has %v: %s", a.where(), a.info.Founders, s.cfg.Founders, sameFounders)
		case founder && a.info.Failed != "":
			return group, nil, fmt.Sprintf("for %s: %s", a.where(), a.info.Failed)
		case founder:
			servers = append(servers, Server{ID: a.info.ID, Addr: a.info.Addr, Voter: true})
		}
	}
	conf, err := configurationOf(servers)
	if err != nil {
		return group, nil, fmt.Sprintf("for the operator: founders: %v: list every node once; if its data directory was copied, %s", err, cloneRemedy)
	}
	return groupOf(s.cfg.Constants.Cluster, conf), servers, ""
}

// bootstrap stores the decision, then gives raft the servers; a restart repeats it.
func (s *Store) bootstrap(inst *raftInstance, group groupID, servers []Server) error {
	conf, err := configurationOf(servers)
	if err != nil {
		return err
	}
	s.identMu.Lock()
	defer s.identMu.Unlock()
	switch now := s.identity().Group; {
	case now == groupID{}:
		if err := s.setIdentity(identity{ID: s.id, Group: group, Founding: servers}); err != nil {
			return err
		}
	case now != group:
		return nil // taken into another one meanwhile
	}
	err = inst.raft.BootstrapCluster(conf).Error()
	if errors.Is(err, raft.ErrCantBootstrap) {
		return nil // another founder's raft was faster
	}
	if err == nil {
		s.log.Info().Str("group", group.String()).Int("servers", len(servers)).Msg("Raft group founded")
	}
	return err
}

// setIdentity stores an identity before use. The caller holds identMu.
func (s *Store) setIdentity(id identity) error {
	inst := s.current()
	if inst == nil {
		return errLinkClosed
	}
	if err := saveIdentity(inst.disk, id); err != nil {
		return err
	}
	s.mu.Lock()
	s.ident = id
	s.mu.Unlock()
	return nil
}

// waitFor notes what this node waits for, and sometimes logs it.
func (s *Store) waitFor(what, message string) {
	s.note(&s.waiting, what)
	if what != "" && what != s.waitLogged && time.Since(s.waitLoggedAt) >= waitLogPause {
		s.waitLogged, s.waitLoggedAt = what, time.Now()
		s.log.Info().Str("for", what).Msg(message)
	}
}

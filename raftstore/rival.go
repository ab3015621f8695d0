package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrBarred means that nothing was done: another group may exist. The text names the remedy.
var ErrBarred = errors.New("this group takes no changes")

const maxGiven = 16

type relation int

const (
	stranger relation = iota // or the same group
	origin                   // recovered into this node's group
	heir                     // recovered from this node's group
	sibling                  // recovered from the same group
)

func (i identity) relationTo(p info) relation {
	switch {
	case i.Group == groupID{} || p.Group == groupID{} || p.Group == i.Group:
		return stranger
	case slices.Contains(i.Given, p.Group):
		return origin
	case slices.Contains(p.Given, i.Group):
		return heir
	case slices.ContainsFunc(p.Given, func(g groupID) bool { return slices.Contains(i.Given, g) }):
		return sibling
	}
	return stranger
}

func (p Peer) where() string {
	if p.Name == "" {
		return p.Addr
	}
	return p.Name + " (" + p.Addr + ")"
}

const (
	giveUpSelf  = "stop this node, empty its data directory, start it with join"
	giveOneUp   = "stop the nodes of one group, empty their data directories, start them with join"
	giveUpOther = "if the other group is the one to give up: do that with its nodes, then run grapevine raft recover here once more"
)

// rivalOf says why recovered data must stay out of service.
func rivalOf(id identity, answers []answered) string {
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		switch relation := id.relationTo(a.info); {
		case relation == sibling && a.info.Proven:
			return fmt.Sprintf("this node's data was recovered as group %s, and the fleet goes on in group %s, recovered from the same one: %s is in it; %s; %s",
				id.Group, a.info.Group, a.where(), giveUpSelf, giveUpOther)
		case relation == origin && a.info.Leader == a.info.ID:
			// A follower may name a leader that is gone.
			return fmt.Sprintf("this node's data was recovered, and the group that it was recovered from (%s) has a majority: %s leads it; %s",
				a.info.Group, a.where(), giveUpSelf)
		}
	}
	return ""
}

// yields says why another group takes precedence over a leader's.
func yields(id identity, answers []answered) string {
	for _, a := range answers {
		if a.err != nil || !a.info.Proven {
			continue
		}
		switch id.relationTo(a.info) {
		case heir:
			return fmt.Sprintf("this group (%s) was given up and recovered as %s: %s is in it; stop the nodes of this one, empty their data directories, start them with join",
				id.Group, a.info.Group, a.where())
		case sibling:
			if before(a.info.Size, a.info.Group, id.Size, id.Group) {
				return fmt.Sprintf("this group (%s) and %s, in which %s is, were recovered apart from the same one, and the other goes on; give one up: stop its nodes, empty their data directories, start them with join",
					id.Group, a.info.Group, a.where())
			}
		case stranger, origin:
		}
	}
	return ""
}

// All nodes must agree on this order of groups.
func before(size int, group groupID, ownSize int, own groupID) bool {
	if size != ownSize {
		return size > ownSize
	}
	return group.String() < own.String()
}

func (s *Store) barred() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ident.Rival != "":
		return s.ident.Rival
	case s.ident.Unproven:
		return "this node's data was recovered and is not in service yet: it waits " + s.waiting
	}
	return s.bar
}

// Proven says whether the data is in service; false without an error means that the search for
// rivals goes on. The error wraps ErrBarred and is permanent.
func (s *Store) Proven() (bool, error) {
	id := s.identity()
	if id.Rival != "" {
		return false, fmt.Errorf("%w: %s", ErrBarred, id.Rival)
	}
	return !id.Unproven, nil
}

// prove reports whether recovered data may be used.
func (s *Store) prove(ctx context.Context, inst *raftInstance) bool {
	id := s.identity()
	if !id.Unproven {
		return true
	}
	if id.Rival != "" {
		return false
	}
	waiting, rival := s.seekRivals(ctx, id)
	if ctx.Err() != nil {
		return false
	}
	if rival == "" && waiting == "" {
		if s.clear.IsZero() {
			s.clear = time.Now()
		}
		waiting = s.unsettled(inst)
	} else {
		s.clear = time.Time{}
	}
	if s.waitFor(waiting, "recovered data is not in service yet"); waiting != "" {
		return false
	}
	id.Unproven, id.Rival = rival != "", rival
	s.identMu.Lock()
	defer s.identMu.Unlock()
	if err := s.setIdentity(id); err != nil {
		return false // tend sees the failure
	}
	s.foreign(rival)
	if rival == "" {
		s.log.Info().Str("group", id.Group.String()).Msg("recovered group is in service")
	}
	return rival == ""
}

func (s *Store) seekRivals(ctx context.Context, id identity) (waiting, rival string) {
	if s.port == nil {
		return "", ""
	}
	if !s.cfg.Met() {
		return "to meet the other nodes", ""
	}
	answers := s.askAll(ctx, s.livePeers())
	if rival := rivalOf(id, answers); rival != "" {
		return "", rival
	}
	for _, a := range answers {
		if a.err != nil {
			return fmt.Sprintf("for an answer of %s: %v", a.where(), a.err), ""
		}
		if id.relationTo(a.info) == sibling { // an unproven one
			return fmt.Sprintf("for the operator: %s was recovered too, with other servers (group %s): stop both, run grapevine raft recover on both with the same --server for each, or empty the data directory of one",
				a.where(), a.info.Group), ""
		}
	}
	return "", ""
}

// unsettled says what else a recovered group waits for. Without a leader it can still be recovered
// with other servers.
func (s *Store) unsettled(inst *raftInstance) string {
	switch {
	case s.port != nil && time.Since(s.clear) < s.cfg.Timers.Settle:
		return fmt.Sprintf("%v for a sign of another group", s.cfg.Timers.Settle)
	case s.leader(inst).ID == "":
		return "for a leader of the recovered group"
	}
	return ""
}

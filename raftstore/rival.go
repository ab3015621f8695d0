package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrBarred: nothing was done, because the fleet has, or may have, another group
// beside this one. The text says which, and what to do.
var ErrBarred = errors.New("this group takes no changes")

// maxGiven bounds the groups that a group remembers to come from.
const maxGiven = 16

// relation is what another group is to a node's own.
type relation int

const (
	stranger relation = iota // nothing, or the same group
	origin                   // the own one was recovered from it
	heir                     // it was recovered from the own one
	sibling                  // both were recovered from a third
)

// relationTo says what a peer's group is to this node's.
func (i identity) relationTo(p info) relation {
	switch {
	case !i.member() || !p.Member || p.Group == i.Group:
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

// where is a peer's name and address.
func (p Peer) where() string {
	if p.Name == "" {
		return p.Addr
	}
	return p.Name + " (" + p.Addr + ")"
}

const (
	giveUpSelf  = "stop this node, empty its data directory, start it with join"
	giveUpOther = "if the other group is the one to give up: do that with its nodes, then run grapevine raft recover here once more"
)

// rivalOf says why data that was recovered must not be put into service: its fleet
// has a group already. "" if no answer says so.
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
			// By its own word, which a lease bounds: a follower may tell of a leader that is gone.
			return fmt.Sprintf("this node's data was recovered, and the group that it was recovered from (%s) has a majority: %s leads it; %s",
				a.info.Group, a.where(), giveUpSelf)
		}
	}
	return ""
}

// yields says why a leader's group must take no changes: the fleet has another one
// that comes before it. "" if it has none.
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

// before says which of two groups that were recovered apart, and met too late, goes on:
// any order will do in which all nodes agree.
func before(size int, group groupID, ownSize int, own groupID) bool {
	if size != ownSize {
		return size > ownSize
	}
	return group.String() < own.String()
}

// barred says why this node, leading, carries out no change and answers no Read: there
// would be two truths.
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

// setBar notes why a leader takes no changes, or, with "", that it does.
func (s *Store) setBar(why string) {
	s.mu.Lock()
	s.bar = why
	s.mu.Unlock()
}

// Proven says whether the data may be used: it was never recovered, or no rival of the
// recovered group was found. Until it is known, both results are zero. The error wraps
// ErrBarred, and is for good.
func (s *Store) Proven() (bool, error) {
	id := s.identity()
	if id.Rival != "" {
		return false, fmt.Errorf("%w: %s", ErrBarred, id.Rival)
	}
	return !id.Unproven, nil
}

// prove is what a node with recovered data does before anything else: it finds out
// that the fleet has no other group. It says whether that is known.
//
// A recovery is one node's word that the others are gone. Two nodes that are each
// recovered alone would be two groups, so each looks for the other first, and
// what a node of the fleet says counts more than what an operator believed.
func (s *Store) prove(ctx context.Context, l *life) bool {
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
		waiting = s.unsettled(l)
	} else {
		s.clear = time.Time{}
	}
	if waiting != "" {
		if s.waitFor(waiting) {
			s.log.Info().Str("for", waiting).Msg("recovered data is not in service yet")
		}
		return false
	}
	id.Unproven, id.Rival = rival != "", rival
	s.identMu.Lock()
	defer s.identMu.Unlock()
	if err := s.setIdentity(id); err != nil {
		return false // the disk failed, and tend will see it
	}
	s.waitFor("")
	s.foreign(rival)
	if rival == "" {
		s.log.Info().Str("group", id.Group.String()).Msg("recovered group is in service")
	}
	return rival == ""
}

// seekRivals asks everybody who is alive, and says what is to be waited for or which
// rival there is.
func (s *Store) seekRivals(ctx context.Context, id identity) (waiting, rival string) {
	if s.port == nil {
		return "", ""
	}
	if !s.cfg.Met() {
		return "to meet the other nodes", ""
	}
	answers := s.askAll(ctx, slices.DeleteFunc(s.peers(), func(p Peer) bool { return !p.Alive || p.Left }))
	if rival := rivalOf(id, answers); rival != "" {
		return "", rival
	}
	for _, a := range answers {
		if a.err != nil {
			return fmt.Sprintf("for an answer of %s: %v", a.where(), a.err), ""
		}
		if id.relationTo(a.info) == sibling { // and unproven, like this one
			return fmt.Sprintf("for the operator: %s was recovered too, with other servers (group %s): stop both, run grapevine raft recover on both with the same --server for each, or empty the data directory of one",
				a.where(), a.info.Group), ""
		}
	}
	return "", ""
}

// unsettled says what a recovered group without a rival still waits for. One that
// cannot elect a leader stays open to be recovered again, otherwise.
func (s *Store) unsettled(l *life) string {
	switch {
	case s.port != nil && time.Since(s.clear) < s.cfg.Timers.Settle:
		return fmt.Sprintf("%v for a sign of another group", s.cfg.Timers.Settle)
	case s.leader(l).ID == "":
		return "for a leader of the recovered group"
	}
	return ""
}

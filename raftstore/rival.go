package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrBarred means that nothing was done, because the fleet has, or may have, another group. The
// text names the group and the remedy.
var ErrBarred = errors.New("this group takes no changes")

// maxGiven bounds the ancestors that a group remembers.
const maxGiven = 16

// relation is how another group relates to this node's.
type relation int

const (
	stranger relation = iota // unrelated, or the same group
	origin                   // this node's group was recovered from it
	heir                     // it was recovered from this node's group
	sibling                  // both were recovered from a third
)

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

// rivalOf says why recovered data must stay out of service: its fleet has another group. "" if no
// answer shows one.
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
			// Only the leader's own answer counts, because a follower may name a leader that is
			// gone.
			return fmt.Sprintf("this node's data was recovered, and the group that it was recovered from (%s) has a majority: %s leads it; %s",
				a.info.Group, a.where(), giveUpSelf)
		}
	}
	return ""
}

// yields says why a leader's group must take no changes: another group of the fleet takes
// precedence. "" if none does.
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

// before decides which of two separately recovered groups continues when they meet too late: the
// one with more servers, else the lower id. All nodes must agree on the order.
func before(size int, group groupID, ownSize int, own groupID) bool {
	if size != ownSize {
		return size > ownSize
	}
	return group.String() < own.String()
}

// barred says why this leader refuses Apply and Read; "" if it does not.
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

// setBar records why a leader takes no changes; "" allows them.
func (s *Store) setBar(why string) {
	s.mu.Lock()
	s.bar = why
	s.mu.Unlock()
}

// Proven says whether the data is in service: it was never recovered, or the search for a rival
// group found none. Both results are zero during the search. The error wraps ErrBarred and is
// permanent.
func (s *Store) Proven() (bool, error) {
	id := s.identity()
	if id.Rival != "" {
		return false, fmt.Errorf("%w: %s", ErrBarred, id.Rival)
	}
	return !id.Unproven, nil
}

// prove looks for rival groups before recovered data is used, and reports whether the data may be
// used. Answers from the fleet outweigh the operator's claim that the other nodes are gone; two
// nodes that were recovered separately would form two groups.
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
		return false // tend sees the disk failure
	}
	s.waitFor("")
	s.foreign(rival)
	if rival == "" {
		s.log.Info().Str("group", id.Group.String()).Msg("recovered group is in service")
	}
	return rival == ""
}

// seekRivals asks all live peers and returns what to wait for, or a rival.
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
		if id.relationTo(a.info) == sibling { // and unproven, like this node's group
			return fmt.Sprintf("for the operator: %s was recovered too, with other servers (group %s): stop both, run grapevine raft recover on both with the same --server for each, or empty the data directory of one",
				a.where(), a.info.Group), ""
		}
	}
	return "", ""
}

// unsettled says what a recovered group without a rival waits for. A group without a leader stays
// unproven, so that it can be recovered again with other servers.
func (s *Store) unsettled(l *life) string {
	switch {
	case s.port != nil && time.Since(s.clear) < s.cfg.Timers.Settle:
		return fmt.Sprintf("%v for a sign of another group", s.cfg.Timers.Settle)
	case s.leader(l).ID == "":
		return "for a leader of the recovered group"
	}
	return ""
}

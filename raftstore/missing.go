package raftstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const countTimeout = 500 * time.Millisecond

// rollCall lists missing voters, for the error of a call without a leader.
type rollCall struct {
	voters  int
	missing []string
}

func (s *Store) count() chan rollCall {
	counted := make(chan rollCall, 1)
	if s.port != nil {
		s.spawn(func() {
			ctx, cancel := context.WithTimeout(s.ctx, countTimeout)
			defer cancel()
			counted <- s.roll(ctx)
		})
	}
	return counted
}

func (s *Store) roll(ctx context.Context) (r rollCall) {
	group, voters := s.group(), s.voters()
	r.voters = len(voters)
	voters = slices.DeleteFunc(voters, func(v Peer) bool { return v.ID == s.id })
	for _, v := range s.askAll(ctx, voters) {
		why := ""
		switch {
		case v.err != nil:
		case v.info.ID != v.ID && v.ID != "":
			why = ", another node has this address"
		case v.info.Group != groupID{} && v.info.Group != group && group != groupID{}:
			why = ", in another group"
		case v.info.Failed != "":
			why = ", " + v.info.Failed
		default:
			continue
		}
		r.missing = append(r.missing, fmt.Sprintf("%s (%s%s)", cmp.Or(v.Name, v.ID), v.Addr, why))
	}
	slices.Sort(r.missing)
	return r
}

// voters returns all peers that may vote if there is no configuration.
func (s *Store) voters() (list []Peer) {
	peers, servers := s.peers(), s.current().servers()
	names := make(map[string]string)
	for _, p := range peers {
		names[p.ID] = p.Name
		if len(servers) == 0 && p.Server && !p.Left {
			list = append(list, p)
		}
	}
	for _, server := range servers {
		if id := string(server.ID); server.Suffrage == raft.Voter {
			list = append(list, Peer{ID: id, Name: names[id], Addr: string(server.Address)})
		}
	}
	return list
}

// missing says why there is no leader.
func (s *Store) missing(counted chan rollCall) string {
	s.mu.Lock()
	waiting, disk := s.waiting, s.problem.disk
	s.mu.Unlock()
	inst := s.current()
	var c rollCall
	known := true
	select {
	case c = <-counted:
	default:
		known = false
	}
	switch {
	case disk != "":
		return "this node's " + disk
	case len(inst.servers()) == 0 && waiting != "" && len(c.missing) > 0:
		return fmt.Sprintf("this node is in no group: %s; unreachable: %s", waiting, strings.Join(c.missing, ", "))
	case len(inst.servers()) == 0 && waiting != "":
		return "this node is in no group: " + waiting
	case !known:
		return ""
	case len(c.missing) > (c.voters-1)/2:
		return fmt.Sprintf("no quorum: %d of %d voters unreachable: %s",
			len(c.missing), c.voters, strings.Join(c.missing, ", "))
	case len(c.missing) > 0:
		return "an election is under way; unreachable: " + strings.Join(c.missing, ", ")
	}
	return "an election is under way"
}

package raftstore

import (
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

type Status struct {
	ID        string         `json:"id"`
	Addr      string         `json:"addr"`
	Group     string         `json:"group"` // hex
	Role      string         `json:"role"`  // leader, follower, candidate, waiting (for a group), failed, stopped
	Leader    string         `json:"leader"`
	Term      uint64         `json:"term"`
	LastIndex uint64         `json:"last_index"`
	Committed uint64         `json:"committed"`
	Version   uint64         `json:"version"` // of State
	Servers   []ServerStatus `json:"servers"` // sorted by id
	// Problem is what an operator should act on; empty means none.
	Problem string `json:"problem,omitempty"`
	Waiting string `json:"waiting,omitempty"`
	// DiskFailed means no vote, and following in memory, until the disk takes writes again.
	DiskFailed bool       `json:"disk_failed,omitempty"`
	Writes     WriteStats `json:"writes"`
}

// ServerStatus is one server. Only a leader fills Healthy, Index and Since.
type ServerStatus struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"` // according to gossip
	Addr    string    `json:"addr"`
	Voter   bool      `json:"voter"`
	Alive   bool      `json:"alive"`             // according to gossip
	Healthy bool      `json:"healthy,omitempty"` // answers with a nearly complete log
	Index   uint64    `json:"index,omitempty"`   // last log index
	Since   time.Time `json:"since,omitzero"`    // last change of Healthy
}

// WriteStats counts disk writes since the process started.
type WriteStats struct {
	Count  uint64        `json:"count"`
	Failed uint64        `json:"failed"`
	Last   time.Duration `json:"last_ns"`
	Max    time.Duration `json:"max_ns"`
}

// Status returns this node's view of the group.
func (s *Store) Status() Status {
	inst := s.current()
	names := make(map[string]Peer)
	for _, p := range s.peers() {
		names[p.ID] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{
		ID: s.id, Addr: s.addr, Group: s.ident.Group.String(), Role: "failed", Version: s.State().Version, Waiting: s.waiting, Servers: []ServerStatus{},
		Problem: strings.Join(slices.DeleteFunc([]string{
			s.problem.disk, s.problem.halted, s.problem.constants, s.problem.group, s.problem.clone.text(time.Now()),
		}, func(text string) bool { return text == "" }), "; "),
		DiskFailed: s.problem.disk != "", Writes: s.counts.stats(),
	}
	if inst == nil {
		if !s.started || s.stopping {
			st.Role = "stopped"
		}
		return st
	}
	servers := inst.servers()
	st.Term = inOneTerm(inst.raft.CurrentTerm, func() {
		st.Role, st.Leader = strings.ToLower(inst.raft.State().String()), s.leader(inst).ID
	})
	if len(servers) == 0 {
		st.Role = "waiting"
	}
	st.LastIndex, st.Committed = inst.raft.LastIndex(), inst.raft.CommitIndex()
	leads := s.isLeader(inst)
	for _, server := range servers {
		p := names[string(server.ID)]
		one := ServerStatus{
			ID: string(server.ID), Name: p.Name, Addr: string(server.Address),
			Voter: server.Suffrage == raft.Voter, Alive: p.Alive || string(server.ID) == s.id,
		}
		if h := s.health[one.ID]; h != nil && leads {
			one.Healthy, one.Index, one.Since = h.healthy, h.index, h.since
		}
		if leads && one.ID == s.id { // before the first answers fill s.health
			one.Healthy, one.Index = true, st.LastIndex
		}
		st.Servers = append(st.Servers, one)
	}
	slices.SortFunc(st.Servers, func(a, b ServerStatus) int { return strings.Compare(a.ID, b.ID) })
	return st
}

// inOneTerm repeats look until no new term began meanwhile, because raft changes term, role and
// leader in separate steps.
func inOneTerm(term func() uint64, look func()) uint64 {
	for {
		before := term()
		if look(); term() == before {
			return before
		}
	}
}

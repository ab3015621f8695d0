package node

import (
	"context"
	"net/http"
	"slices"
	"time"

	"grapevine/node/admin"
	"grapevine/raftstore"
)

func (n *Node) Rules() *admin.RuleSet {
	set := &admin.RuleSet{Source: "configuration", Rules: []admin.RuleStatus{}}
	now := n.backends.Roster() // the store's state may be newer than what is in force
	set.Version = now.Source.Version
	if now.Source.Text != "" {
		set.Source, set.Text = "fleet", now.Source.Text
	}
	for _, r := range now.Rules {
		set.Rules = append(set.Rules, admin.RuleStatus{Model: r.Model, Path: r.PathPrefix, Header: r.Header, HeaderValue: r.HeaderValue, Strategy: r.Strategy})
	}
	return set
}

// AgreedRules may be newer than those in force.
func (n *Node) AgreedRules() (raftstore.Rules, error) {
	s, err := n.agreement()
	if err != nil {
		return raftstore.Rules{}, err
	}
	return s.State().Rules, nil
}

func (n *Node) SetRules(ctx context.Context, text string, ifVersion *uint64) (*admin.Changed, error) {
	done, err := n.change(ctx, raftstore.SetRules{Text: text, IfVersion: ifVersion})
	if err == nil && !done.Changed {
		done.Version = n.versionOfRules(ctx, n.store.Load(), text)
	}
	return done, err
}

// versionOfRules is the version of rules with this text; a node that is behind waits for it.
func (n *Node) versionOfRules(ctx context.Context, s *raftstore.Store, text string) uint64 {
	ctx, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	for {
		changed := s.Changed()
		rules := s.State().Rules
		if rules.Text == text {
			return rules.Version
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rules.Version
		}
	}
}

// TransferLeadership makes a voter (name or raft id) the leader; "" is the most advanced one.
func (n *Node) TransferLeadership(ctx context.Context, to string) (*admin.RaftStatus, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	if to != "" {
		v, err := n.namedVoter(to)
		if err != nil {
			return nil, err
		}
		to = v.ID
	}
	before := s.Status()
	if before.Leader == before.ID && !slices.ContainsFunc(before.Servers, func(v raftstore.ServerStatus) bool { return v.Voter && v.ID != before.ID }) {
		return nil, admin.Refuse(http.StatusConflict, "", "start other nodes with a data_dir, and wait until one of them votes (grapevine raft status)",
			"this node is the only voter: no other can lead")
	}
	if err := s.Transfer(ctx, to); err != nil {
		return nil, err
	}
	n.awaitLeader(ctx, func(leader string) bool { return tookOver(leader, before.Leader, to) })
	return n.Raft()
}

func (n *Node) namedVoter(to string) (raftstore.ServerStatus, error) {
	st, err := n.Raft()
	if err != nil {
		return raftstore.ServerStatus{}, err
	}
	return voterNamed(st.Servers, to)
}

func voterNamed(servers []raftstore.ServerStatus, to string) (raftstore.ServerStatus, error) {
	meant := slices.DeleteFunc(slices.Clone(servers), func(v raftstore.ServerStatus) bool { return v.ID != to && v.Name != to })
	if len(meant) == 0 {
		return raftstore.ServerStatus{}, admin.Refuse(http.StatusNotFound, "to", "take one from GET /raft (grapevine raft status)", "%q is no server of the group", to)
	}
	for _, fits := range []func(raftstore.ServerStatus) bool{
		func(v raftstore.ServerStatus) bool { return v.Voter && v.Alive },
		func(v raftstore.ServerStatus) bool { return v.Voter },
	} {
		if at := slices.IndexFunc(meant, fits); at >= 0 {
			return meant[at], nil
		}
	}
	return raftstore.ServerStatus{}, admin.Refuse(http.StatusConflict, "to", "take a voter from GET /raft (grapevine raft status)", "%q does not vote, and cannot lead", to)
}

const leaderPoll = 10 * time.Millisecond

func tookOver(leader, before, to string) bool {
	if to != "" {
		return leader == to
	}
	return leader != "" && leader != before
}

// awaitLeader waits up to ownWait for the new leader, so that the answer shows it.
func (n *Node) awaitLeader(ctx context.Context, does func(leader string) bool) {
	ctx, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for {
		if st, err := n.Raft(); err != nil || does(st.Leader) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

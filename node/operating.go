package node

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

func (n *Node) Rules() *admin.RuleSet {
	set := &admin.RuleSet{Source: "configuration", Rules: []admin.RuleStatus{}}
	now := n.backends.Roster() // the store's state may be newer than what is in force
	set.Version = now.Source.Version
	if now.Source.Text != "" {
		set.Source, set.Text = "fleet", now.Source.Text
	}
	for _, r := range now.Rules {
		set.Rules = append(set.Rules, ruleStatus(&r))
	}
	return set
}

func ruleStatus(r *rules.Rule) admin.RuleStatus {
	labels := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ",")
	}
	s := admin.RuleStatus{
		Name: r.Name, Model: r.Model, Path: r.PathPrefix, Header: r.Header, HeaderValue: r.HeaderValue, Session: r.Session, To: r.To,
		Pool: labels(r.Pool), Fallback: labels(r.Fallback), Strategy: r.Strategy,
	}
	if r.Share > 0 {
		s.Share = strconv.FormatFloat(100*r.Share, 'g', 6, 64) + "%"
	}
	return s
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
	rules, err := config.ParseRules(text)
	if err != nil {
		return nil, err
	}
	targets := slices.ContainsFunc(rules, func(r config.Rule) bool { return r.Targets() })
	done, err := n.change(ctx, raftstore.SetRules{Text: text, IfVersion: ifVersion, Targets: targets})
	if err == nil && !done.Changed {
		state := awaitState(ctx, n.store.Load(), func(s *raftstore.State) bool { return s.Rules.Text == text })
		done.Version = state.Rules.Version
	}
	return done, err
}

// TransferLeadership makes a voter (name or raft id) the leader; "" is the most advanced one.
func (n *Node) TransferLeadership(ctx context.Context, to string) (*admin.RaftStatus, error) {
	before, err := n.Raft()
	if err != nil {
		return nil, err
	}
	if to != "" {
		v, err := voterNamed(before.Servers, to)
		if err != nil {
			return nil, err
		}
		to = v.ID
	}
	if before.Leader == before.ID && !slices.ContainsFunc(before.Servers, func(v raftstore.ServerStatus) bool { return v.Voter && v.ID != before.ID }) {
		return nil, admin.Refuse(http.StatusConflict, "", "start other nodes with a data_dir, and wait until one of them votes (grapevine raft status)",
			"this node is the only voter: no other can lead")
	}
	s := n.store.Load()
	if err := s.Transfer(ctx, to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	poll(ctx, func() bool { return tookOver(s.Status().Leader, before.Leader, to) }) // so that the answer shows it
	return n.Raft()
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

func tookOver(leader, before, to string) bool {
	if to != "" {
		return leader == to
	}
	return leader != "" && leader != before
}

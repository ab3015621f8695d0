package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"grapevine/node/config"
	"grapevine/raftstore"
)

type RuleSet struct {
	// Source is "fleet", or "configuration" for this node's own rules, which are in force while the
	// fleet has none that this release can read.
	Source  string `json:"source"`
	Version uint64 `json:"version"` // of the fleet's rules; 0: none yet
	Text    string `json:"text"`    // as applied; empty for a node's own
	// The first matching rule wins.
	Rules []RuleStatus `json:"rules"`
}

// RuleStatus is one rule, with the keys of the YAML form.
type RuleStatus struct {
	Model       string `json:"model,omitempty"`
	Path        string `json:"path,omitempty"`
	Header      string `json:"header,omitempty"`
	HeaderValue string `json:"value,omitempty"`
	Strategy    string `json:"strategy"`
}

type RuleChange struct {
	Changed
	DryRun bool `json:"dry_run"`
	// Difference is the change by line, with "-" and "+".
	Difference string `json:"difference"`
}

type rulesRequest struct {
	Text string `json:"text"`
	// IfVersion, if given, is the version to replace.
	IfVersion *uint64 `json:"if_version,omitempty"`
}

// Rules returns the routing rules in force on this node.
func (n *Node) Rules() *RuleSet {
	set := &RuleSet{Source: "configuration", Rules: []RuleStatus{}}
	now := n.backends.Roster() // the store's state may be newer than what is in force
	set.Version = now.Source.Version
	if now.Source.Text != "" {
		set.Source, set.Text = "fleet", now.Source.Text
	}
	for _, r := range now.Rules {
		set.Rules = append(set.Rules, RuleStatus{Model: r.Model, Path: r.PathPrefix, Header: r.Header, HeaderValue: r.HeaderValue, Strategy: r.Strategy})
	}
	return set
}

// putRules answers PUT /rules.
func (n *Node) putRules(w http.ResponseWriter, r *http.Request) {
	var body rulesRequest
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	dry, refused := isSet(r, "dry_run")
	if refused != nil {
		refused.write(w)
		return
	}
	if _, err := config.ParseRules(body.Text); err != nil {
		refusalOfConfig(err).write(w)
		return
	}
	s, err := n.agreement()
	if err != nil {
		refusalOf(err).write(w)
		return
	}
	now := s.State().Rules
	out := RuleChange{DryRun: dry, Difference: difference(now.Text, body.Text)}
	if dry {
		if body.IfVersion != nil && *body.IfVersion != now.Version {
			refusalOf(fmt.Errorf("%w: the rules have version %d, not %d", raftstore.ErrConflict, now.Version, *body.IfVersion)).write(w)
			return
		}
		out.Version, out.Changed.Changed = now.Version, out.Difference != ""
		answer(w, out)
		return
	}
	done, err := n.change(r.Context(), raftstore.SetRules{Text: body.Text, IfVersion: body.IfVersion})
	if err != nil {
		refusalOf(err).write(w)
		return
	}
	if out.Changed = *done; !done.Changed {
		out.Version = n.versionOfRules(r.Context(), s, body.Text)
	}
	answer(w, out)
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

func (n *Node) serveRaft(w http.ResponseWriter, _ *http.Request) {
	st, err := n.Raft()
	if err != nil {
		refusalOf(err).write(w)
		return
	}
	answer(w, st)
}

type transferRequest struct {
	To string `json:"to"` // name or raft id of a voter; empty: the most advanced one
}

func (n *Node) transferLeadership(w http.ResponseWriter, r *http.Request) {
	var body transferRequest
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	s, err := n.agreement()
	if err != nil {
		refusalOf(err).write(w)
		return
	}
	to := ""
	if body.To != "" {
		v, refused := n.namedVoter(body.To)
		if refused != nil {
			refused.write(w)
			return
		}
		to = v.ID
	}
	before := s.Status()
	if before.Leader == before.ID && !slices.ContainsFunc(before.Servers, func(v raftstore.ServerStatus) bool { return v.Voter && v.ID != before.ID }) {
		(&Refusal{status: http.StatusConflict, Reason: "this node is the only voter: no other can lead",
			Remedy: "start other nodes with a data_dir, and wait until one of them votes (grapevine raft status)"}).write(w)
		return
	}
	if err := s.Transfer(r.Context(), to); err != nil {
		refusalOf(err).write(w)
		return
	}
	n.awaitLeader(r.Context(), func(leader string) bool { return tookOver(leader, before.Leader, to) })
	n.serveRaft(w, r)
}

// namedVoter finds a voter by raft id or name; of two with one name it takes the living one.
func (n *Node) namedVoter(to string) (raftstore.ServerStatus, *Refusal) {
	st, err := n.Raft()
	if err != nil {
		return raftstore.ServerStatus{}, refusalOf(err)
	}
	return voterNamed(st.Servers, to)
}

func voterNamed(servers []raftstore.ServerStatus, to string) (raftstore.ServerStatus, *Refusal) {
	meant := slices.DeleteFunc(slices.Clone(servers), func(v raftstore.ServerStatus) bool { return v.ID != to && v.Name != to })
	if len(meant) == 0 {
		return raftstore.ServerStatus{}, &Refusal{status: http.StatusNotFound, Place: "to", Reason: fmt.Sprintf("%q is no server of the group", to),
			Remedy: "take one from GET /raft (grapevine raft status)"}
	}
	for _, fits := range []func(raftstore.ServerStatus) bool{
		func(v raftstore.ServerStatus) bool { return v.Voter && v.Alive },
		func(v raftstore.ServerStatus) bool { return v.Voter },
	} {
		if at := slices.IndexFunc(meant, fits); at >= 0 {
			return meant[at], nil
		}
	}
	return raftstore.ServerStatus{}, &Refusal{status: http.StatusConflict, Place: "to", Reason: fmt.Sprintf("%q does not vote, and cannot lead", to),
		Remedy: "take a voter from GET /raft (grapevine raft status)"}
}

const leaderPoll = 10 * time.Millisecond

// tookOver says whether leader is the requested voter or, if none was requested, another than
// before.
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

// RecoverRaft forces a new group on the data of a stopped node; see raftstore.Recover.
func RecoverRaft(dir string, servers []raftstore.Server) error {
	return raftstore.Recover(dir, servers)
}

// InspectRaft reads the data of a stopped node; see raftstore.Inspect.
func InspectRaft(dir string) (raftstore.Survivor, error) { return raftstore.Inspect(dir) }

// RaftServer is a server of the group, for RecoverRaft.
type RaftServer = raftstore.Server

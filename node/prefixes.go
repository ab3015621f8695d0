package node

import (
	"net/http"
	"time"

	"grapevine/node/hot"
	"grapevine/raftstore"
)

type PrefixList struct {
	// Enabled says whether hot prefixes are replicated.
	Enabled  bool           `json:"enabled"`
	Prefixes []PrefixStatus `json:"prefixes"` // by anchor
}

// PrefixStatus is one hot prefix and its replica set.
type PrefixStatus struct {
	Anchor   string `json:"anchor"`   // hex
	Tokens   uint32 `json:"tokens"`   // length of the prefix
	Replicas uint16 `json:"replicas"` // size of the replica set
	// Backends is in order of preference, as computed here; empty while no node reports work.
	Backends []string `json:"backends"`
	// Share is the prefix's share of requests, Work the backends that its requests keep busy, Other
	// the rest of each backend's load, all over all nodes. Why explains the size.
	Share    float64 `json:"share"`
	Work     float64 `json:"work"`
	Other    float64 `json:"other"`
	Why      string  `json:"why"`
	AgeS     float64 `json:"age_s"` // since it became hot
	ChangedS float64 `json:"changed_s"`
	ExpiresS float64 `json:"expires_s"` // from now; renewed while hot
}

func (n *Node) Prefixes() (*PrefixList, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	state, at := s.State(), time.Now()
	list := &PrefixList{Enabled: state.Switches.Hot, Prefixes: make([]PrefixStatus, 0, len(state.Hot))}
	for _, p := range n.hot.Sets(state, at) {
		st := PrefixStatus{
			Anchor: hot.AnchorText(p.Anchor), Tokens: uint32(p.Tokens), Replicas: uint16(p.Replicas), Backends: []string{},
			Share: p.Need.Share, Work: p.Need.Work, Other: p.Need.Other, Why: "no node reports requests that begin with it",
			AgeS: ageS(time.UnixMilli(int64(p.Since))), ChangedS: ageS(time.UnixMilli(int64(p.Changed))),
			ExpiresS: max(time.UnixMilli(int64(p.Expires)).Sub(at).Seconds(), 0),
		}
		if p.Backends != nil {
			st.Backends, st.Why = p.Backends, p.Need.Why()
		}
		list.Prefixes = append(list.Prefixes, st)
	}
	return list, nil
}

func (n *Node) servePrefixes(w http.ResponseWriter, _ *http.Request) {
	list, err := n.Prefixes()
	if err != nil {
		refusalOf(err).write(w)
		return
	}
	answer(w, list)
}

func (n *Node) switchPrefixes(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Enabled *bool `json:"enabled"`
	}
	if refused := readBody(w, r, &body); refused != nil {
		refused.write(w)
		return
	}
	if body.Enabled == nil {
		invalid("enabled", `send {"enabled":false}`, "is missing").write(w)
		return
	}
	n.answerChange(w, r, raftstore.SetSwitches{Switches: raftstore.Switches{Hot: *body.Enabled}})
}

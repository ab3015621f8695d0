package node

import (
	"fmt"
	"net/http"
	"time"

	"grapevine/node/hot"
	"grapevine/prefixtree"
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

func anchorText(h prefixtree.Hash) string { return fmt.Sprintf("%016x", uint64(h)) }

func (n *Node) Prefixes() (*PrefixList, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	state, at := s.State(), time.Now()
	sum := n.hot.work(at)
	list := &PrefixList{Enabled: state.Switches.Hot, Prefixes: make([]PrefixStatus, 0, len(state.Hot))}
	for i, p := range agreedPrefixes(state) {
		st := PrefixStatus{
			Anchor: anchorText(p.Anchor), Tokens: state.Hot[i].Depth, Replicas: state.Hot[i].R, Backends: []string{}, Why: "nobody tells of requests that begin with it",
			AgeS: ageS(time.UnixMilli(int64(p.Since))), ChangedS: ageS(time.UnixMilli(int64(p.Changed))), ExpiresS: max(float64(p.Expires-millis(at))/1000, 0),
		}
		if pool, ok := poolOf(p.Anchor, sum); ok {
			st.Backends = append(st.Backends, n.router.HotSet(pool, p.HotPrefix)...)
			need := hot.Size(sum[hot.Key{Pool: pool, Anchor: p.Anchor}].Work, sum[hot.Key{Pool: pool}].Work, n.hot.backends(pool), -1)
			st.Share, st.Work, st.Other, st.Why = need.Share, need.Work, need.Other, need.Why()
		}
		list.Prefixes = append(list.Prefixes, st)
	}
	return list, nil
}

func (h *replicator) backends(pool uint64) int {
	for _, p := range h.router.Pools() {
		if p.Pool == pool {
			return max(p.Backends, 1)
		}
	}
	return 1
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

package node

import (
	"context"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/node/doctor"
	"grapevine.example/node/history"
	"grapevine.example/proxy/books"
	"grapevine.example/raftstore"
)

// loadTooOld is the age at which an engine's report no longer counts as waiting requests.
const loadTooOld = 30 * time.Second

func (n *Node) keepHistory(ctx context.Context) {
	tick := time.NewTicker(history.Fine)
	defer tick.Stop()
	for {
		select {
		case at := <-tick.C:
			n.history.Tick(at, n.proxy.InFlight(), n.waiting())
			n.doctor.Tick(at)
			hitRate, random := n.history.HitRates()
			n.baseline.Keep(history.Horizon(n.meanHorizon(), hitRate, random), at)
		case <-ctx.Done():
			return
		}
	}
}

// meanHorizon is how long the engines keep what no request uses.
func (n *Node) meanHorizon() time.Duration {
	var sum time.Duration
	list := n.backends.Roster().List
	for _, e := range list {
		sum += n.tree.Horizon(e.ID)
	}
	return sum / time.Duration(max(len(list), 1))
}

// waiting sums the requests that wait inside engines; -1 if no engine reports them.
func (n *Node) waiting() int {
	sum := -1
	for _, e := range n.backends.Roster().List {
		if l, _ := n.backends.Load(e); !l.At.IsZero() && time.Since(l.At) < loadTooOld && l.Waiting >= 0 {
			sum = max(sum, 0) + l.Waiting
		}
	}
	return sum
}

// lags are this node's lags to the peers that it hears, in milliseconds.
func (n *Node) lags() map[uint32]float64 {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	lags := make(map[uint32]float64)
	for _, p := range g.Peers() {
		if p.Connected && p.State == member.StateAlive {
			lags[lagKey(p.Name)] = milliseconds(p.Lag)
		}
	}
	return lags
}

func lagKey(name string) uint32 { return uint32(xxh3.HashString(name)) &^ (1 << 31) }

// lagMatrix has a row for each node: how late it hears each node, in milliseconds; nil: not at all,
// or unknown.
func (n *Node) lagMatrix(nodes []admin.NodeStatus) [][]*float64 {
	keys := make([]uint32, len(nodes))
	for i := range nodes {
		keys[i] = lagKey(nodes[i].Name)
	}
	rows := make([][]*float64, len(nodes))
	for i := range nodes {
		rows[i] = make([]*float64, len(nodes))
		reported, _ := n.history.Lags(nodes[i].Name)
		for j := range nodes {
			heard, ok := reported[keys[j]]
			ms := float64(heard)
			switch {
			case i == j:
			case nodes[i].Self && nodes[j].Connected && nodes[j].State == string(member.StateAlive):
				rows[i][j] = &nodes[j].LagMS
			case ok:
				rows[i][j] = &ms
			}
		}
	}
	return rows
}

// History returns the fleet's figures since a time.
func (n *Node) History(coarse bool, since time.Time) *admin.History {
	return &admin.History{Node: n.name, Nodes: n.fleetSize(), Reporting: 1 + n.history.Reporting(), Span: n.history.Span(coarse, since)}
}

// maxAttention bounds the engines that Status names.
const maxAttention = 8

func (n *Node) engineSummary() (s admin.EngineSummary) {
	at := now()
	s.Attention = []admin.EngineTrouble{}
	for _, e := range n.backends.Roster().List {
		_, avoided := n.router.Avoided(e.ID, at)
		t := admin.EngineTrouble{Name: e.Name, State: e.State.String(), Reason: e.Reason}
		if e.Agreed {
			t.SinceS = tenths(ageS(time.UnixMilli(e.Since)))
		}
		switch {
		case e.State == raftstore.Down:
			s.Down++
		case e.State == raftstore.Draining:
			s.Draining++
		case avoided:
			s.Avoided++
			v, _ := n.health.Verdict(e)
			t.State, t.Reason, t.SinceS = "avoided", v.Reason.String(), tenths(ageS(v.Since))
		default:
			s.Active++
			continue
		}
		if len(s.Attention) < maxAttention {
			s.Attention = append(s.Attention, t)
		}
	}
	return s
}

// Doctor returns the diagnosis of the fleet's requests.
func (n *Node) Doctor() *doctor.Report {
	r := n.doctor.Report(time.Now())
	r.Node = n.name
	return r
}

// Receipts returns those of the last requests, newest first; with candidates, if an id is given.
func (n *Node) Receipts(id string) *admin.ReceiptList {
	list := &admin.ReceiptList{Node: n.name, Receipts: []admin.RequestRecord{}}
	for _, r := range n.receipts.Latest(id) {
		out := admin.RequestRecord{
			AtMS: r.At.UnixMilli(), ID: r.ID, Path: r.Path, Model: r.Model, Client: r.Client, Status: r.Status, Backend: r.Backend, Strategy: r.Strategy,
			Rung: r.Rung, Eligible: r.Eligible, Attempts: r.Attempts, PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, OutputTokens: r.OutputTokens,
			PredictedTokens: r.PredictedTokens, QueueS: r.Queue.Seconds(), TTFTS: r.TTFT.Seconds(), TotalS: r.Total.Seconds(),
		}
		if r.Failed != books.None {
			out.Failed = r.Failed.String()
		}
		if id != "" {
			out.Candidates = candidatesOf(r.Candidates)
		}
		list.Receipts = append(list.Receipts, out)
	}
	return list
}

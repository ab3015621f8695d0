package node

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/prefixtree"
)

func (n *Node) fleetStatus() *admin.FleetStatus {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	return &admin.FleetStatus{
		Nodes: int(n.knowledge.nodes.Load()), WarmFraction: g.WarmFraction(),
		StalenessMS: milliseconds(time.Duration(n.knowledge.staleness.Load())), BlindDecisions: n.router.Stats().Blind,
		Incomplete: incomplete(g.Peers()), Refused: g.Members().Refused(),
	}
}

func incomplete(peers []gossip.Peer) (count int) {
	for i := range peers {
		if peers[i].Incomplete && peers[i].State == member.StateAlive {
			count++
		}
	}
	return count
}

func (n *Node) NodeList() *admin.NodeList {
	self := admin.NodeStatus{
		Name: n.name, Self: true, State: string(member.StateAlive), Data: n.Addr(), Admin: n.AdminAddr(), Version: n.cfg.Version,
	}
	if n.Addr() != "" {
		self.SinceS, self.StartedMS = time.Since(n.began).Seconds(), uint64(n.began.UnixMilli())
	}
	list := &admin.NodeList{Nodes: []admin.NodeStatus{self}, Seeds: []admin.SeedStatus{}, Refusals: []admin.RefusalStatus{}}
	defer func() { list.LagsMS = n.lagMatrix(list.Nodes) }()
	g := n.gossip.Load()
	if g == nil {
		return list
	}
	members := g.Members()
	me := &list.Nodes[0]
	me.Gossip = members.Self().Addr
	me.Data, me.Admin = reachable(me.Data, me.Gossip), reachable(me.Admin, me.Gossip)
	peers := g.Peers()
	slices.SortFunc(peers, func(a, b gossip.Peer) int { return strings.Compare(a.Name, b.Name) })
	for i := range peers {
		list.Nodes = append(list.Nodes, nodeStatus(&peers[i]))
	}
	for _, s := range members.JoinErrors() {
		list.Seeds = append(list.Seeds, admin.SeedStatus{Seed: s.Seed, Addr: s.Addr, AgeS: ageS(s.At), Error: text(s.Err)})
	}
	for _, r := range members.Refusals() {
		list.Refusals = append(list.Refusals, admin.RefusalStatus{Name: r.Name, Addr: r.Addr, AgeS: ageS(r.At), Count: r.Count, Error: text(r.Err)})
	}
	slices.SortStableFunc(list.Seeds, func(a, b admin.SeedStatus) int {
		return cmp.Or(strings.Compare(a.Seed, b.Seed), strings.Compare(a.Addr, b.Addr))
	})
	return list
}

func nodeStatus(p *gossip.Peer) admin.NodeStatus {
	return admin.NodeStatus{
		Name: p.Name, State: string(p.State), SinceS: ageS(p.Since), Gossip: p.Addr,
		Data: reachable(p.Data, p.Addr), Admin: reachable(p.Admin, p.Addr), Version: p.Version, StartedMS: p.Incarnation,
		Connected: p.Connected, LagMS: milliseconds(p.Lag), RTTMS: milliseconds(p.RTT), OffsetMS: milliseconds(p.Offset),
		Subscribed: p.Subscribed, Behind: p.Behind, Missed: p.Missed, ReceivedBytes: p.ReceivedBytes, SentBytes: p.SentBytes, LastError: p.LastError,
	}
}

func (n *Node) GossipStatus(facts bool) *admin.GossipStatus {
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	k, shared := n.knowledge, n.knowledge.shared.Stats()
	s := &admin.GossipStatus{
		Node: n.name, Stats: g.Stats(), Outbox: admin.OutboxStatus(shared.Outbox), Peers: make(map[string]admin.PeerStatus),
		Process: g.Members().Self().Incarnation, Position: g.Position(), Unknown: shared.Unknown, BadState: k.malformed.Load(),
	}
	if facts {
		s.Facts = factsStatus(n.tree.FactDigests(now(), n.backends.Numbers()))
	}
	for _, p := range g.Peers() {
		s.Peers[p.Name] = admin.PeerStatus{
			LagMS: milliseconds(p.Lag), Received: p.Received, Applied: p.Applied, News: p.News, Dropped: p.Dropped,
			Unknown: p.Unknown, Process: p.Process, Position: p.Position, Incomplete: p.Incomplete, MissedBatches: p.Missed, Violations: p.Violations, Connects: p.Connects,
			ReceivedBytes: p.ReceivedBytes, SentBytes: p.SentBytes,
		}
	}
	return s
}

func factsStatus(backends map[uint32]prefixtree.FactSum) *admin.FactsStatus {
	s := &admin.FactsStatus{Backends: make(map[string]admin.FactsOf, len(backends))}
	var xor uint64
	for key, sum := range backends {
		s.Count += sum.Count
		xor ^= sum.XOR
		s.Backends[fmt.Sprintf("%08x", key)] = admin.FactsOf{Count: sum.Count, XOR: fmt.Sprintf("%016x", sum.XOR)}
	}
	s.XOR = fmt.Sprintf("%016x", xor)
	return s
}

func milliseconds(d time.Duration) float64 { return math.Round(float64(d)/1e3) / 1e3 }

func ageS(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(time.Since(t).Seconds(), 0)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

package node

import (
	"context"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/proxy/clients"
)

const (
	// limitsEvery is a flush of gossip: an older node may grant its part of the smaller fleet for as long after another has joined.
	limitsEvery = 50 * time.Millisecond
	// lateAfter is two of gossip's pings. Peers silent for reporterSilence are no longer heard.
	lateAfter = time.Second
)

// followFleet tells the meter of clients' limits which part of the fleet this node hears.
func (n *Node) followFleet(ctx context.Context) {
	tick := time.NewTicker(limitsEvery)
	defer tick.Stop()
	for {
		if f := n.heardFleet(); !n.released.Load() {
			n.meter.SetFleet(f)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// heardFleet takes the members of gossip or of the Raft group, whichever are more: the group keeps
// dead nodes until its leader removes them, and gossip knows new ones first. A node that has just left
// counts: its process may still grant its part, until another takes its place.
func (n *Node) heardFleet() clients.Fleet {
	f := clients.Fleet{Heard: 1, Nodes: 1}
	g := n.gossip.Load()
	if g == nil {
		return f
	}
	for _, p := range g.Peers() {
		switch {
		case p.State == member.StateLeft && time.Since(p.Since) < clients.Succession:
			f.Nodes++
		case p.State == member.StateAlive:
			f.Nodes++
			if silence := time.Since(p.LastHeard); p.Reported && silence < reporterSilence {
				f.Heard++
				f.Silent = f.Silent || silence > lateAfter
			}
		}
	}
	if time.Since(n.began) < clients.Succession {
		f.Nodes = max(f.Nodes, n.nodesBefore)
	}
	f.Staleness = time.Duration(n.knowledge.staleness.Load())
	if s := n.store.Load(); s != nil {
		f.Nodes = max(f.Nodes, len(s.Status().Servers))
	}
	return f
}

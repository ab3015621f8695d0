package node

import (
	"context"
	"sync"
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
		n.setFleet()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// limits is what this node knows of the processes that grant clients' limits besides its peers.
type limits struct {
	mu           sync.Mutex // also orders the meter's SetFleet
	predecessor  companion
	successor    companion
	nodesBefore  int           // of the fleet, as the predecessor heard it at first
	beforeSwitch clients.Fleet // while there is a successor: the fleet as this process last heard it
}

// companion is the process that this one replaces, or that replaces this one: both admit requests for a while, and report to each other.
type companion struct {
	is    bool
	heard time.Time // zero: not yet
}

// count makes the companion share this node's part of the limits. Until it is heard this process's use must not add up.
func (c *companion) count(f *clients.Fleet) {
	silence := time.Since(c.heard)
	switch {
	case !c.is:
	case c.heard.IsZero():
		f.Processes++
		f.Silent = true
	case silence < reporterSilence:
		f.Processes++
		f.Staleness = max(f.Staleness, min(silence, lateAfter), 2*usageEvery)
		f.Silent = f.Silent || silence > lateAfter
	}
}

// setFleet tells the meter which processes grant limits.
func (n *Node) setFleet() {
	n.limits.mu.Lock()
	defer n.limits.mu.Unlock()
	n.setFleetLocked()
}

func (n *Node) setFleetLocked() {
	l := &n.limits
	f := l.beforeSwitch
	if l.successor.is {
		f.Silent = f.Nodes > 1 // it hears its peers no more
	} else {
		f = n.heardFleet()
		if time.Since(n.began) < clients.Succession {
			f.Nodes = max(f.Nodes, l.nodesBefore)
		}
	}
	f.Processes = 1
	l.predecessor.count(&f)
	l.successor.count(&f)
	n.meter.SetFleet(f)
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
	f.Staleness = time.Duration(n.knowledge.staleness.Load())
	if s := n.store.Load(); s != nil {
		f.Nodes = max(f.Nodes, len(s.Status().Servers))
	}
	return f
}

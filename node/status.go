package node

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"grapevine/node/admin"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

// Status returns the node's current state.
func (n *Node) Status() *admin.Status {
	st, tree := n.router.Stats(), n.tree.Stats()
	s := &admin.Status{
		Node: n.name, Version: n.cfg.Version, GoVersion: runtime.Version(),
		Listen: n.Addr(), Admin: n.AdminAddr(), Strategy: n.cfg.Strategy, Backends: len(n.fleet.roster().list),
		InFlight: n.proxy.InFlight(), Connections: n.proxy.Connections(),
		BlockBytes: n.hasher.BlockBytes(), KeyID: fmt.Sprintf("%08x", n.hasher.KeyID()),
		Picks: st.Picks, Rungs: make(map[string]uint64),
		Tree: admin.TreeStatus{
			Facts: tree.Facts, Bytes: tree.Bytes, Budget: tree.Budget, Evicted: tree.Evicted, Expired: tree.Expired,
			Retracted: tree.Retracted, Surprises: tree.Surprises, CachesLost: tree.CachesLost,
		},
	}
	s.Fleet, s.Certificate = n.fleetStatus(), n.certificateStatus(time.Now())
	s.Ready, s.NotReady = n.ready.get()
	if n.Addr() != "" {
		s.UptimeS = math.Round(time.Since(n.began).Seconds()*10) / 10
	}
	for r, count := range st.Rungs {
		s.Rungs[policy.Rung(r).String()] = count
	}
	return s
}

// BackendList returns the node's backends, sorted by name once the fleet agrees on them.
func (n *Node) BackendList() *admin.BackendList {
	at, roster := now(), n.fleet.roster()
	list := &admin.BackendList{Backends: make([]admin.BackendStatus, len(roster.list)), Sources: n.sources.status()}
	for i, u := range roster.list {
		s := admin.BackendStatus{
			Name: u.Name, URL: u.URL, State: u.state.String(), Source: raftstore.Static.String(), Generation: u.generation,
			Weight: u.Weight, Rate: math.Round(n.router.Rate(u.id)), HorizonS: n.tree.Horizon(u.id).Seconds(),
		}
		if b := u.agreed; b != nil {
			s.Agreed, s.Drained, s.Source, s.Reason, s.Version = true, b.Drained, b.Source.String(), b.Reason, b.Version
			s.SinceS = ageS(time.UnixMilli(b.Since))
			if b.Drained {
				s.DrainedBy = b.DrainedBy.String()
			}
			if b.State == raftstore.Down {
				s.DownBy = b.DownBy.String()
			}
		}
		s.PrefillTokens, s.Active = n.router.Load(u.id)
		_, others := n.router.PeerLoad(u.id)
		s.FleetActive = s.Active + others
		if until, avoid := n.router.Avoided(u.id, at); avoid && u.state == policy.Active {
			s.State, s.RetryInS = "avoided", max(float64(until-at)/1000, 0)
		}
		s.Health = n.checker.status(u)
		s.Models, s.ModelsFrom, s.ModelsError = n.fleet.modelsOf(u)
		var r report
		if r, s.KVTokens = n.fleet.reportOf(u); !r.at.IsZero() {
			s.Engine = &admin.EngineReport{AgeS: time.Since(r.at).Seconds(), Running: r.Running, Waiting: r.Waiting, KVUsage: r.KVUsage}
		}
		list.Backends[i] = s
	}
	return list
}

package node

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/health"
	"grapevine.example/node/streams"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

func (n *Node) Status() *admin.Status {
	st, tree := n.router.Stats(), n.tree.Stats()
	s := &admin.Status{
		Node: n.name, Version: n.cfg.Version, GoVersion: runtime.Version(),
		Listen: n.Addr(), Admin: n.AdminAddr(), Strategy: n.Running().Strategy, Backends: len(n.backends.Roster().List),
		InFlight: n.proxy.InFlight(), Connections: n.proxy.Connections(),
		BlockBytes: n.hasher.BlockBytes(), KeyID: fmt.Sprintf("%08x", n.hasher.KeyID()),
		Picks: st.Picks, Rungs: make(map[string]uint64),
		Caches: map[string]int{streams.Exact: 0, streams.Degraded: 0, streams.Reported: 0, streams.Predicted: 0},
		Tree: admin.TreeStatus{
			Facts: tree.Facts, Bytes: tree.Bytes, Budget: tree.Budget, Evicted: tree.Evicted, Expired: tree.Expired,
			Retracted: tree.Retracted, Surprises: tree.Surprises, CachesLost: tree.CachesLost,
		},
	}
	for _, e := range n.backends.Roster().List {
		s.Caches[n.streams.Status(e).Known]++
	}
	s.Affinity, s.Engines = n.affinity(), n.engineSummary()
	s.Fleet, s.Certificate, s.Reload = n.fleetStatus(), n.certificateStatus(time.Now()), n.reloadStatus()
	s.Ready, s.NotReady = n.ready.get()
	if n.Addr() != "" {
		s.UptimeS = tenths(ageS(n.began))
	}
	for r, count := range st.Rungs {
		s.Rungs[policy.Rung(r).String()] = count
	}
	return s
}

// BackendList is sorted by name once the fleet agrees on the backends.
func (n *Node) BackendList() *admin.BackendList {
	at, roster := now(), n.backends.Roster()
	list := &admin.BackendList{Backends: make([]admin.BackendStatus, len(roster.List)), Sources: []admin.SourceStatus{}}
	for _, st := range n.sources.Status() {
		list.Sources = append(list.Sources, admin.SourceStatus{Source: st.Source, Backends: st.Backends, AgeS: tenths(ageS(st.At)), Error: st.Error})
	}
	for i, e := range roster.List {
		s := admin.BackendStatus{
			Name: e.Name, URL: e.URL, State: e.State.String(), Agreed: e.Agreed, Drained: e.Drained, Source: e.Source.String(),
			Reason: e.Reason, Generation: e.Generation, Version: e.Version,
			BootstrapPort: e.BootstrapPort, Labels: e.Labels,
			Weight: e.Weight, Rate: math.Round(n.router.Rate(e.ID)), HorizonS: n.tree.Horizon(e.ID).Seconds(),
		}
		if e.Role != raftstore.Both {
			s.Role = e.Role.String()
		}
		if e.Agreed {
			s.SinceS = ageS(time.UnixMilli(e.Since))
		}
		if e.Drained {
			s.DrainedBy = e.DrainedBy.String()
		}
		if e.State == raftstore.Down {
			s.DownBy = e.DownBy.String()
		}
		if s.RateFrom = "requests"; n.router.RateReported(e.ID, at) {
			s.RateFrom = "engine"
		}
		s.PrefillTokens, s.Active = n.router.Load(e.ID)
		tokens, others := n.router.PeerLoad(e.ID)
		if s.Rate > 0 {
			s.QueueS = math.Round(1000*float64(s.PrefillTokens+tokens)/s.Rate) / 1000
		}
		s.FleetActive = s.Active + others
		if until, avoid := n.router.Avoided(e.ID, at); avoid && e.State == raftstore.Active {
			s.State, s.RetryInS = "avoided", max(float64(until-at)/1000, 0)
		}
		s.Cache = cacheOf(n.streams.Status(e))
		s.Health = healthOf(n.health.Verdict(e))
		s.Models, s.ModelsFrom, s.ModelsError = n.backends.Models(e)
		var r backends.Load
		if r, s.KVTokens = n.backends.Load(e); !r.At.IsZero() {
			s.Engine = &admin.EngineReport{
				From: r.From, AgeS: time.Since(r.At).Seconds(), Running: r.Running, Waiting: r.Waiting, KVUsage: r.KVUsage, QueuedTokens: r.Queued,
			}
		}
		list.Backends[i] = s
	}
	return list
}

func cacheOf(st streams.Status) admin.CacheStatus {
	c := admin.CacheStatus{Known: st.Known, Why: st.Why, Followers: st.Followers, Blocks: st.Blocks}
	if c.Followers == nil {
		c.Followers = []string{}
	}
	return c
}

func healthOf(v health.Verdict, known bool) admin.HealthStatus {
	if !known {
		return admin.HealthStatus{Reporters: []string{}}
	}
	s := admin.HealthStatus{
		Failing: v.Failing, Avoided: v.Avoid, Reporters: v.Reporters, OK: v.OK, Bad: v.Bad, SinceS: tenths(ageS(v.Since)),
	}
	if v.Reason != health.NoReason {
		s.Reason = v.Reason.String()
	}
	if !v.Probed.IsZero() {
		s.ProbedS = new(tenths(ageS(v.Probed)))
	}
	return s
}

func tenths(seconds float64) float64 { return math.Round(seconds*10) / 10 }

package node

import (
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/metrics"
	"grapevine.example/node/streams"
	"grapevine.example/proxy/clients"
	"grapevine.example/raftstore"
)

func (n *Node) collect(s metrics.Scrape) {
	n.collectRequests(s)
	n.collectClients(s)
	n.collectEngines(s)
	collectLoads(s, n.loads())
	collectFollowed(s, n.followed())
	n.collectTree(s)
	n.collectAgreement(s)
	n.health.Collect(s)
	n.sources.Collect(s)
	n.hot.Collect(s)
	n.collectAffinity(s, n.router.Affinities(now()))
	if n.gossipCert.Load() != nil {
		n.currentGossipCert() // streams last: one that is renewed would else seem to expire
	}
	if f := n.fleetFigures(); f != nil {
		f.collect(s)
	}
}

func (n *Node) collectRequests(s metrics.Scrape) {
	bodyBytes, bodiesRefused := n.proxy.BodyMemory()
	s.Gauge("ready", "1 while the node asks for traffic.")(metrics.Bool(n.Ready()))
	s.Gauge("requests_in_flight", "Requests being served.")(float64(n.proxy.InFlight()))
	s.Gauge("connections", "Open client connections.")(float64(n.proxy.Connections()))
	s.Gauge("body_memory_bytes", "Bytes that request bodies hold, of max_body_memory.")(float64(bodyBytes))
	waiting := s.Gauge("queue_requests", "Requests that wait in the router's queue.", "priority")
	bytes := s.Gauge("queue_bytes", "Bytes of the bodies of requests that wait in the router's queue, of queue_bytes.", "priority")
	for _, p := range clients.Priorities() {
		requests, size := n.proxy.Queued(p)
		waiting(float64(requests), p.String())
		bytes(float64(size), p.String())
	}
	s.Counter("access_log_dropped_total", "Lines of access_log that were lost because the file was slow, or failed.")(float64(n.access.Dropped()))
	spans := s.Counter("spans_total", "Spans of requests for the collector of otlp_endpoint: sent, or dropped because it was too slow, failed or refused them.", "outcome")
	spans(float64(n.traces.Sent()), "sent")
	spans(float64(n.traces.Dropped()), "dropped")
	s.Counter("bodies_refused_total", "Requests answered 503 because max_body_memory was in use.")(float64(bodiesRefused))
}

// collectEngines shows the series of the engines that this node probes: of each engine, up to three nodes do. If every node showed all
// engines, a hundred nodes with two thousand engines would have millions of series.
func (n *Node) collectEngines(s metrics.Scrape) {
	active := s.Gauge("backend_active_requests", "Requests of this node at the backend.", "backend")
	prefill := s.Gauge("backend_prefill_tokens", "Estimated prompt tokens of this node's requests that the backend has still to compute.", "backend")
	avoided := s.Gauge("backend_avoided", "1 while this node avoids the backend: requests or probes failed, other nodes report it, or it answered 429.", "backend")
	horizon := s.Gauge("backend_horizon_seconds", "Learned age at which the engine has probably evicted an unused prefix. Not additive.", "backend")
	rate := s.Gauge("backend_prefill_tokens_per_second", "Learned prompt tokens per second. Not additive.", "backend")
	models := s.Gauge("backend_models", "Known models of the backend; 0: it may serve any. Not additive.", "backend")
	exact := s.Gauge("backend_cache_exact", "1 while this node follows the engine's cache events and none are lost. Not additive.", "backend")
	agreed := s.Gauge("backend_state", "1 for the state that the fleet agrees on: active, draining or down. Not additive.", "backend", "state")
	at, avoids := now(), 0
	for _, u := range n.backends.Roster().List {
		_, avoid := n.router.Avoided(u.ID, at)
		if avoid {
			avoids++
		}
		if !n.health.Probes(u) {
			continue
		}
		tokens, requests := n.router.Load(u.ID)
		names, _, _ := n.backends.Models(u)
		active(float64(requests), u.Name)
		prefill(float64(tokens), u.Name)
		avoided(metrics.Bool(avoid), u.Name)
		horizon(n.tree.Horizon(u.ID).Seconds(), u.Name)
		rate(n.router.Rate(u.ID), u.Name)
		models(float64(len(names)), u.Name)
		exact(metrics.Bool(n.streams.Status(u).Known == streams.Exact), u.Name)
		for _, state := range agreedStates {
			agreed(metrics.Bool(u.State == state), u.Name, state.String())
		}
		n.metrics.CollectBackend(s, u.Name)
	}
	n.metrics.CollectOtherBackends(s)
	s.Gauge("backends_avoided", "Backends that this node avoids.")(float64(avoids))
}

var agreedStates = []raftstore.BackendState{raftstore.Active, raftstore.Draining, raftstore.Down}

// followed are the caches of the engines whose cache events this node follows, by name.
func (n *Node) followed() map[string]streams.Status {
	all := make(map[string]streams.Status)
	for _, e := range n.backends.Roster().List {
		if st := n.streams.Status(e); st.Following {
			all[e.Name] = st
		}
	}
	return all
}

func collectFollowed(s metrics.Scrape, caches map[string]streams.Status) {
	blocks := s.Gauge("backend_cache_blocks", "KV blocks of the engine by its events, at the nodes that follow it. Not additive.", "backend")
	batches := s.Counter("cache_event_batches_total", "Batches of cache events applied since this node began to follow the engine.", "backend")
	missing := s.Counter("cache_event_batches_missing_total", "Batches of cache events that neither the stream nor its replay brought.", "backend")
	checked := s.Counter("cache_checks_total", "Answers whose count of cached tokens was compared with the engine's events, by result.", "backend", "result")
	for name, st := range caches {
		blocks(float64(st.Blocks), name)
		batches(float64(st.Batches), name)
		missing(float64(st.Missing), name)
		checked(float64(st.Agreed), name, "agreed")
		checked(float64(st.Contradicted), name, "contradicted")
	}
}

// loads are the latest reports of the engines that report their load and that this node probes, by name.
func (n *Node) loads() map[string]backends.Load {
	all := make(map[string]backends.Load)
	for _, e := range n.backends.Roster().List {
		if l, _ := n.backends.Load(e); !l.At.IsZero() && n.health.Probes(e) {
			all[e.Name] = l
		}
	}
	return all
}

func collectLoads(s metrics.Scrape, loads map[string]backends.Load) {
	age := s.Gauge("backend_report_age_seconds", "Age of what the engine last reported of its load in its metrics or, SGLang, at /v1/loads. Not additive.", "backend", "from")
	for name, l := range loads {
		age(time.Since(l.At).Seconds(), name, l.From)
	}
}

func (n *Node) collectTree(s metrics.Scrape) {
	st := n.tree.Stats()
	s.Gauge("tree_facts", "Facts in the tree: which engine probably caches which prefix.")(float64(st.Facts))
	s.Gauge("tree_bytes", "Bytes of the tree's tables.")(float64(st.Bytes))
	s.Counter("tree_evicted_total", "Facts dropped to keep the budget, oldest first.")(float64(st.Evicted))
	s.Counter("tree_expired_total", "Facts dropped because the engine has probably evicted the prefix.")(float64(st.Expired))
	s.Counter("tree_retracted_total", "Facts removed because an engine reported fewer cached tokens.")(float64(st.Retracted))
	s.Counter("tree_refused_total", "Facts not stored because the tree was full.")(float64(st.Refused))
	s.Counter("tree_rebuilds_total", "Tables rebuilt to grow, shrink or evict.")(float64(st.Rebuilds))
	s.Counter("tree_surprises_total", "Answers without a cached token although a recent match was predicted.")(float64(st.Surprises))
	s.Counter("tree_caches_lost_total", "Backends whose facts were dropped after three answers in a row without a cached token.")(float64(st.CachesLost))
}

func (n *Node) collectAgreement(s metrics.Scrape) {
	r, count := n.backends.Roster(), make(map[raftstore.BackendState]int)
	for _, u := range r.List {
		count[u.State]++
	}
	engines := s.Gauge("backends", "Backends by their agreed state. Not additive.", "state")
	for _, state := range agreedStates {
		engines(float64(count[state]), state.String())
	}
	var st admin.RaftStatus
	if now, err := n.Raft(); err == nil {
		st = *now
	}
	voters := 0
	for _, v := range st.Servers {
		if v.Voter {
			voters++
		}
	}
	s.Gauge("state_version", "Version of the agreed state that this node routes by; 0: its own list. Not additive.")(float64(r.Version))
	s.Gauge("raft_leads", "1 on the leader; the sum over a fleet is 1.")(metrics.Bool(st.Role == "leader"))
	s.Gauge("raft_has_leader", "1 while this node knows a leader; without one the fleet takes no changes and keeps routing. Not additive.")(metrics.Bool(st.Leader != ""))
	s.Gauge("raft_behind_entries", "Log entries that this node has and does not know to be committed.")(max(float64(st.LastIndex)-float64(st.Committed), 0))
	s.Gauge("raft_voters", "Voters of the Raft group as this node knows it. Not additive.")(float64(voters))
	s.Counter("raft_writes_total", "Writes of the Raft log to this node's disk.")(float64(st.Writes.Count))
	s.Counter("raft_write_failures_total", "Writes of the Raft log that failed or were too slow: the node does not vote until its disk works again.")(float64(st.Writes.Failed))
	s.Gauge("raft_write_max_seconds", "Slowest write of the Raft log since the start. Not additive.")(st.Writes.Max.Seconds())
	s.Gauge("raft_disk_failed", "1 while the disk of data_dir takes no writes: the node follows the leader in memory and does not vote; alone, it refuses changes.")(metrics.Bool(st.DiskFailed))
}

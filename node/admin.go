package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"grapevine/gossip/member"
	"grapevine/node/backends"
	"grapevine/proxy/policy"
	"grapevine/raftstore"
)

const adminReadTimeout = 30 * time.Second

const maxScrapes = 8

// Status is the answer to GET /status.
type Status struct {
	Node        string            `json:"node"`
	Version     string            `json:"version"`
	GoVersion   string            `json:"go_version"`
	UptimeS     float64           `json:"uptime_s"`
	Ready       bool              `json:"ready"`
	NotReady    string            `json:"not_ready,omitempty"` // why
	Listen      string            `json:"listen"`
	Admin       string            `json:"admin"`
	Strategy    string            `json:"strategy"`
	Backends    int               `json:"backends"`
	InFlight    int               `json:"in_flight"`
	Connections int               `json:"connections"`
	BlockBytes  int               `json:"block_bytes"`
	KeyID       string            `json:"key_id"` // of the hash secret
	Picks       uint64            `json:"picks"`
	Rungs       map[string]uint64 `json:"rungs"`
	Tree        TreeStatus        `json:"tree"`
	Fleet       *FleetStatus      `json:"fleet"` // null without one
	// Certificate is the data port's; null without TLS.
	Certificate *CertificateStatus `json:"certificate"`
}

// TreeStatus is a copy of prefixtree.Stats.
type TreeStatus struct {
	Facts      int64  `json:"facts"`
	Bytes      int64  `json:"bytes"`
	Budget     int64  `json:"budget"`
	Evicted    uint64 `json:"evicted"`
	Expired    uint64 `json:"expired"`
	Retracted  uint64 `json:"retracted"`
	Surprises  uint64 `json:"surprises"`
	CachesLost uint64 `json:"caches_lost"`
}

// BackendList is the answer to GET /backends.
type BackendList struct {
	Backends []BackendStatus `json:"backends"`
	// Sources are this node's sources of backends.
	Sources []SourceStatus `json:"sources"`
}

// BackendStatus is one backend as this node knows it. Loads are its own unless named fleet.
type BackendStatus struct {
	Name     string  `json:"name"`
	URL      string  `json:"url"`
	State    string  `json:"state"` // active, draining, down, or avoided: failed here, retried in RetryInS
	RetryInS float64 `json:"retry_in_s,omitempty"`
	// Agreed is false for a backend known only from this node's own list.
	Agreed  bool `json:"agreed"`
	Drained bool `json:"drained"` // drain requested; kept while down
	// DrainedBy and DownBy are operator, source or health; "" if not drained or down.
	DrainedBy     string  `json:"drained_by,omitempty"`
	DownBy        string  `json:"down_by,omitempty"`
	Source        string  `json:"source"` // static, file, dns or admin
	Reason        string  `json:"reason,omitempty"`
	SinceS        float64 `json:"since_s,omitempty"` // of the agreed state
	Generation    uint32  `json:"generation"`
	Version       uint64  `json:"version"` // of its last change, for if_version
	Weight        float64 `json:"weight"`
	KVTokens      int     `json:"kv_tokens,omitempty"`
	Active        int64   `json:"active"`         // requests of this node
	FleetActive   int64   `json:"fleet_active"`   // of all nodes, as last reported
	PrefillTokens int64   `json:"prefill_tokens"` // outstanding
	Rate          float64 `json:"rate"`           // prefill tokens/s, learned
	HorizonS      float64 `json:"horizon_s"`
	// Health is what probes and requests have shown.
	Health HealthStatus `json:"health"`
	// Engine is null before the first report.
	Engine      *EngineReport `json:"engine"`
	Models      []string      `json:"models"`      // null: any
	ModelsFrom  string        `json:"models_from"` // configured, engine or unknown
	ModelsError string        `json:"models_error,omitempty"`
}

// EngineReport is an engine's whole load, from all routers.
type EngineReport struct {
	AgeS    float64 `json:"age_s"`
	Running int     `json:"running"`  // requests
	Waiting int     `json:"waiting"`  // requests
	KVUsage float64 `json:"kv_usage"` // 0 to 1
}

func (n *Node) startAdmin(ctx context.Context) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", n.cfg.Admin)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	n.admin.Store(ln.Addr().String())
	if host, _, err := net.SplitHostPort(ln.Addr().String()); err == nil && n.cfg.AdminTokenFile == "" && !net.ParseIP(host).IsLoopback() {
		n.log.Warn().Str("component", "admin").Str("admin", ln.Addr().String()).Msg("the admin API shows backends, nodes and load to everybody who reaches it: give it an admin_token_file, or an address on loopback")
	}
	n.serveHTTP("admin", ln, n.guard(n.adminHandler()))
	return nil
}

func (n *Node) startMetrics(ctx context.Context) error {
	if n.cfg.MetricsListen == "" {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", n.cfg.MetricsListen)
	if err != nil {
		return fmt.Errorf("metrics_listen: %w", err)
	}
	n.metricsAddr.Store(ln.Addr().String())
	mux, all := http.NewServeMux(), n.routes()
	for path := range openPaths {
		mux.Handle("GET "+path, all["GET "+path])
	}
	n.serveHTTP("metrics", ln, inJSON(mux))
	return nil
}

func (n *Node) serveHTTP(component string, ln net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadTimeout: adminReadTimeout, ErrorLog: stdlog.New(n.log.With().Str("component", component).Logger(), "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("%s: %w", component, err))
		}
	}()
	n.cleanups.push(component, func(ctx context.Context) error {
		// A scrape may finish; a 30 s profile may not.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-served
		return nil
	})
}

// MetricsAddr is the bound metrics_listen, "" without one and before Start.
func (n *Node) MetricsAddr() string { s, _ := n.metricsAddr.Load().(string); return s }

func (n *Node) adminHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range n.routes() {
		mux.Handle(pattern, handler)
	}
	if n.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return inJSON(mux)
}

// inJSON answers unknown paths and methods in JSON, like all refusals.
func inJSON(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		said := &headOnly{header: w.Header()}
		mux.ServeHTTP(said, r)
		refused := &Refusal{status: said.status, Place: r.Method + " " + r.URL.Path, Reason: "there is no such path", Remedy: "see docs/openapi.yaml for the paths there are"}
		if said.status == http.StatusMethodNotAllowed {
			refused.Reason, refused.Remedy = "there is no such method", "use "+w.Header().Get("Allow")
		}
		refused.write(w)
	})
}

type headOnly struct {
	header http.Header
	status int
}

func (h *headOnly) Header() http.Header         { return h.header }
func (h *headOnly) Write(b []byte) (int, error) { return len(b), nil }
func (h *headOnly) WriteHeader(status int)      { h.status = status }

// routes match docs/openapi.yaml.
func (n *Node) routes() map[string]http.Handler {
	show := func(of func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { answer(w, of()) }
	}
	return map[string]http.Handler{
		"GET /healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok\n")
		}),
		"GET /readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ready, reason := n.ready.get(); !ready {
				http.Error(w, "not ready: "+reason, http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "ready\n")
		}),
		"GET /metrics":  promhttp.HandlerFor(n.metrics.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}),
		"GET /status":   show(func() any { return n.Status() }),
		"GET /nodes":    show(func() any { return n.NodeList() }),
		"GET /gossip":   http.HandlerFunc(n.serveGossip),
		"POST /explain": http.HandlerFunc(n.explain),

		"GET /keys":          http.HandlerFunc(n.serveKeys),
		"POST /keys/install": n.changeKeys(member.KeyInstall),
		"POST /keys/use":     n.changeKeys(member.KeyUse),
		"POST /keys/remove":  n.changeKeys(member.KeyRemove),

		"GET /backends":             only(n.listBackends, "consistent"),
		"POST /backends":            only(n.addBackends, "force"),
		"PATCH /backends":           only(n.setBackendState, "force"),
		"DELETE /backends":          only(n.removeBackends, "name", "force"),
		"PATCH /backends/{name...}": only(n.updateBackend, "force"),

		"GET /rules":          only(show(func() any { return n.Rules() })),
		"PUT /rules":          only(n.putRules, "dry_run"),
		"GET /raft":           only(n.serveRaft),
		"POST /raft/transfer": only(n.transferLeadership),
		"GET /prefixes":       only(n.servePrefixes),
		"PATCH /prefixes":     only(n.switchPrefixes),
	}
}

// Status returns the node's current state.
func (n *Node) Status() *Status {
	st, tree := n.router.Stats(), n.tree.Stats()
	s := &Status{
		Node: n.name, Version: n.cfg.Version, GoVersion: runtime.Version(),
		Listen: n.Addr(), Admin: n.AdminAddr(), Strategy: n.cfg.Strategy, Backends: len(n.backends.Roster().List),
		InFlight: n.proxy.InFlight(), Connections: n.proxy.Connections(),
		BlockBytes: n.hasher.BlockBytes(), KeyID: fmt.Sprintf("%08x", n.hasher.KeyID()),
		Picks: st.Picks, Rungs: make(map[string]uint64),
		Tree: TreeStatus{
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
func (n *Node) BackendList() *BackendList {
	at, roster := now(), n.backends.Roster()
	list := &BackendList{Backends: make([]BackendStatus, len(roster.List)), Sources: n.sources.status()}
	for i, e := range roster.List {
		s := BackendStatus{
			Name: e.Name, URL: e.URL, State: e.State.String(), Agreed: e.Agreed, Drained: e.Drained, Source: e.Source.String(),
			Reason: e.Reason, Generation: e.Generation, Version: e.Version,
			Weight: e.Weight, Rate: math.Round(n.router.Rate(e.ID)), HorizonS: n.tree.Horizon(e.ID).Seconds(),
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
		s.PrefillTokens, s.Active = n.router.Load(e.ID)
		_, others := n.router.PeerLoad(e.ID)
		s.FleetActive = s.Active + others
		if until, avoid := n.router.Avoided(e.ID, at); avoid && e.State == raftstore.Active {
			s.State, s.RetryInS = "avoided", max(float64(until-at)/1000, 0)
		}
		s.Health = n.checker.status(e)
		s.Models, s.ModelsFrom, s.ModelsError = n.backends.Models(e)
		var r backends.Load
		if r, s.KVTokens = n.backends.Load(e); !r.At.IsZero() {
			s.Engine = &EngineReport{AgeS: time.Since(r.At).Seconds(), Running: r.Running, Waiting: r.Waiting, KVUsage: r.KVUsage}
		}
		list.Backends[i] = s
	}
	return list
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// With the status line sent, a failed write cannot be reported.
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf(format, args...)})
}

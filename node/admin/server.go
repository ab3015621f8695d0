package admin

import (
	"io"
	"net/http"
	"net/http/pprof"

	"grapevine.example/gossip/member"
	"grapevine.example/node/config"
)

type Server struct {
	Service Service
	Ready   func() (ready bool, reason string)
	Metrics http.Handler
	// TokenFile "" admits clients on this machine.
	TokenFile string
	// Running is the configuration in force; max_body and pprof count.
	Running func() *config.Config
	// Dashboard serves GET /ui/, which has no data of the node.
	Dashboard http.Handler
}

func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range s.Routes() {
		mux.Handle(pattern, handler)
	}
	mux.Handle("GET /ui/", s.Dashboard)
	mux.Handle("GET /{$}", http.RedirectHandler("/ui/", http.StatusFound))
	for path, profile := range map[string]http.HandlerFunc{"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace} {
		mux.HandleFunc("GET /debug/pprof/"+path, func(w http.ResponseWriter, r *http.Request) {
			if !s.Running().Pprof {
				http.NotFound(w, r)
				return
			}
			profile(w, r)
		})
	}
	return s.Guard(inJSON(mux))
}

// OpenHandler answers only what needs no token: metrics, health and readiness.
func (s *Server) OpenHandler() http.Handler {
	mux, all := http.NewServeMux(), s.Routes()
	for path := range openPaths {
		mux.Handle("GET "+path, all["GET "+path])
	}
	return inJSON(mux)
}

// Routes are the handlers by pattern, without the guard.
func (s *Server) Routes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok\n")
		}),
		"GET /readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ready, reason := s.Ready(); !ready {
				http.Error(w, "not ready: "+reason, http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "ready\n")
		}),
		"GET /metrics":  s.Metrics,
		"GET /status":   show(s.Service.Status),
		"GET /nodes":    show(s.Service.NodeList),
		"GET /gossip":   reply(s.gossip),
		"GET /history":  reply(s.history),
		"GET /receipts": reply(func(r *http.Request) (*ReceiptList, error) { return s.Service.Receipts(r.URL.Query().Get("id")), nil }),
		"POST /explain": reply(s.explain),

		"GET /keys":          reply(s.keys),
		"POST /keys/install": replyTo(s.changeKeys(member.KeyInstall)),
		"POST /keys/use":     replyTo(s.changeKeys(member.KeyUse)),
		"POST /keys/remove":  replyTo(s.changeKeys(member.KeyRemove)),

		"GET /backends":             only(reply(s.listBackends), "consistent"),
		"POST /backends":            only(replyTo(s.addBackends), "force"),
		"PATCH /backends":           only(replyTo(s.setBackendState), "force"),
		"DELETE /backends":          only(reply(s.removeBackends), "name", "force"),
		"PATCH /backends/{name...}": only(replyTo(s.updateBackend), "force"),

		"GET /doctor":         only(show(s.Service.Doctor)),
		"GET /clients":        only(show(s.Service.Clients)),
		"GET /queue":          only(show(s.Service.Queue)),
		"GET /rules":          only(show(s.Service.Rules)),
		"PUT /rules":          only(replyTo(s.putRules), "dry_run"),
		"GET /raft":           only(reply(func(*http.Request) (*RaftStatus, error) { return s.Service.Raft() })),
		"POST /raft/transfer": only(replyTo(s.transfer)),
		"GET /prefixes":       only(reply(func(*http.Request) (*PrefixList, error) { return s.Service.Prefixes() })),
		"GET /prefixes/tree":  only(show(s.Service.PrefixTree)),
		"PATCH /prefixes":     only(replyTo(s.switchPrefixes)),
	}
}

func inJSON(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		head := &headOnly{header: w.Header()}
		mux.ServeHTTP(head, r)
		refused := Refuse(head.status, r.Method+" "+r.URL.Path, "see docs/openapi.yaml for the paths there are", "there is no such path")
		if head.status == http.StatusMethodNotAllowed {
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

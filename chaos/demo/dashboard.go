package demo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"
)

// Dashboard is one loopback address for the dashboards of all runs, whose fleets have ports of their own. It passes requests to the
// admin API of a router that is not killed; between two runs it answers 503, and a browser reloads. Safe for concurrent use.
type Dashboard struct {
	listener  net.Listener
	server    http.Server
	transport *http.Transport
	router    atomic.Pointer[string] // host:port of the admin API; nil between runs
	served    chan error
}

// OpenDashboard listens until Close.
func OpenDashboard() (*Dashboard, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &Dashboard{listener: l, transport: &http.Transport{ResponseHeaderTimeout: 10 * time.Second}, served: make(chan error, 1)}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: *r.In.Context().Value(routerKey{}).(*string)})
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { notReady(w) },
		Transport:    d.transport,
	}
	d.server = http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		router := d.router.Load()
		if router == nil {
			notReady(w)
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), routerKey{}, router)))
	})}
	go func() { d.served <- d.server.Serve(l) }()
	return d, nil
}

type routerKey struct{}

func notReady(w http.ResponseWriter) {
	w.Header().Set("Refresh", "1")
	http.Error(w, "The next fleet is starting; this page reloads.", http.StatusServiceUnavailable)
}

// URL is where a browser opens it.
func (d *Dashboard) URL() string { return "http://" + d.listener.Addr().String() + "/ui/" }

// show sets the router; "": none.
func (d *Dashboard) show(router string) {
	if router == "" {
		d.router.Store(nil)
		return
	}
	d.router.Store(&router)
}

// Close ends all connections.
func (d *Dashboard) Close() error {
	err := d.server.Close()
	d.transport.CloseIdleConnections()
	if served := <-d.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"grapevine.example/node/admin"
	"grapevine.example/node/dashboard"
)

const adminReadTimeout = 30 * time.Second

const maxScrapes = 8

func (n *Node) adminServer() *admin.Server {
	return &admin.Server{
		Service: n, Ready: n.ready.get,
		Metrics:   promhttp.HandlerFor(n.metrics.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true}),
		Dashboard: dashboard.Handler(), TokenFile: n.cfg.AdminTokenFile, Running: n.Running,
	}
}

// listen binds the address of a setting, unless the service manager or this process's predecessor has.
func (n *Node) listen(ctx context.Context, setting, addr string, ln net.Listener) (net.Listener, error) {
	if ln == nil {
		var lc net.ListenConfig
		var err error
		if ln, err = lc.Listen(ctx, "tcp", addr); err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
	}
	n.sockets[setting] = ln
	return ln, nil
}

func (n *Node) startAdmin(ctx context.Context, passed net.Listener) error {
	ln, err := n.listen(ctx, "admin", cmp.Or(n.AdminAddr(), n.cfg.Admin), passed)
	if err != nil {
		return err
	}
	n.admin.Store(ln.Addr().String())
	if host, _, err := net.SplitHostPort(ln.Addr().String()); err == nil && n.cfg.AdminTokenFile == "" && !net.ParseIP(host).IsLoopback() {
		n.log.Warn().Str("component", "admin").Str("admin", ln.Addr().String()).Msg("the admin API shows backends, nodes and load to every host that reaches it: give it an admin_token_file, or an address on loopback")
	}
	n.serveHTTP("admin", ln, n.adminServer().Handler())
	return nil
}

func (n *Node) startMetrics(ctx context.Context, passed net.Listener) error {
	if n.cfg.MetricsListen == "" {
		return nil
	}
	ln, err := n.listen(ctx, "metrics_listen", cmp.Or(n.MetricsAddr(), n.cfg.MetricsListen), passed)
	if err != nil {
		return err
	}
	n.metricsAddr.Store(ln.Addr().String())
	n.serveHTTP("metrics", ln, n.adminServer().OpenHandler())
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
	n.single.push(component, func(ctx context.Context) error {
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

package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/valyala/fasthttp"
)

const serverBuffer = 16 << 10

// clientKeepAlive is below the 350 s after which AWS's balancer forgets a silent flow.
const clientKeepAlive = 60 * time.Second

// newServer returns what serves the connections that are accepted from now on.
func (p *Proxy) newServer(cfg *Config) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:      p.handle,
		ErrorHandler: refuseUnread,
		ConnState: func(c net.Conn, s fasthttp.ConnState) {
			if s == fasthttp.StateIdle {
				c.(*clientConn).state.CompareAndSwap(connActive, connIdle)
			}
		},
		Logger:                       silentLogger{},
		ReadBufferSize:               cfg.MaxHeader,
		WriteBufferSize:              serverBuffer,
		ReadTimeout:                  cfg.Timeouts.Read,
		IdleTimeout:                  cfg.Timeouts.KeepAlive,
		StreamRequestBody:            true, // receive reads the body
		HeaderReceived:               p.refuseAnnounced,
		Concurrency:                  cfg.MaxConns,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		DisablePreParseMultipartForm: true,
	}
}

// fasthttp's log lines quote headers and so API keys.
type silentLogger struct{}

func (silentLogger) Printf(string, ...any) {}

// fasthttp need not wait for a body that is too large; serve refuses it.
func (p *Proxy) refuseAnnounced(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if h.ContentLength() > p.tuned.Load().MaxBody {
		h.SetContentLength(0)
		h.Del(fasthttp.HeaderExpect)
	}
	return none
}

// leftUnread: refuseAnnounced went by a smaller MaxBody than this request, which Retune replaced in between.
func (e *exchange) leftUnread() bool {
	return e.head.announced > 0 && e.ctx.Request.Header.ContentLength() == 0
}

// Serve accepts connections until Shutdown (nil) or until ln fails for good, and closes ln.
// fasthttp's own loop ends when descriptors run out.
func (p *Proxy) Serve(ln net.Listener) error {
	if err := p.open(ln); err != nil {
		ln.Close()
		return err
	}
	defer p.accepting.Done()
	var pause time.Duration
	for {
		c, err := ln.Accept()
		if err == nil {
			pause = 0
			p.accept(c)
			continue
		}
		p.mu.Lock()
		_, open := p.listeners[ln]
		p.mu.Unlock()
		if !open {
			return nil // Shutdown closed it
		}
		if !temporary(err) {
			ln.Close()
			return fmt.Errorf("accept: %w", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		p.cfg.Log.Warn().Err(err).Dur("pause", pause).Msg("cannot accept connections")
		time.Sleep(pause)
	}
}

func (p *Proxy) open(ln net.Listener) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if p.watchDone == nil {
		if err := p.departures.open(p); err != nil {
			return err
		}
		p.watchDone = make(chan struct{})
		go p.watch(p.watchDone)
		if p.waiting != nil {
			p.attended = make(chan struct{})
			go func() {
				defer close(p.attended)
				p.waiting.attend(p.watchStop)
			}()
		}
	}
	p.listeners[ln] = struct{}{}
	p.accepting.Add(1)
	return nil
}

func temporary(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.ECONNRESET, syscall.EINTR, os.ErrDeadlineExceeded}, func(e error) bool { return errors.Is(err, e) })
}

func (p *Proxy) accept(raw net.Conn) {
	c := &clientConn{Conn: raw, proxy: p, raw: raw}
	c.state.Store(connFresh)
	p.mu.Lock()
	if len(p.conns) >= p.tuned.Load().MaxConns {
		p.mu.Unlock()
		raw.Close()
		return
	}
	p.lastKey++
	c.key = p.lastKey
	p.conns[c.key] = c
	p.served.Add(1)
	p.mu.Unlock()
	go p.serveConn(c)
}

func (p *Proxy) serveConn(c *clientConn) {
	defer p.served.Done()
	err := p.departures.add(c)
	if err == nil {
		err = p.serveHTTP(c)
	}
	c.raw.Close()
	c.releaseBody(0)
	p.mu.Lock()
	delete(p.conns, c.key)
	p.mu.Unlock()
	if err != nil {
		p.logBroken(c, err)
	}
}

func (p *Proxy) serveHTTP(c *clientConn) (err error) {
	defer func() {
		if r := recover(); r != nil {
			p.logPanic(r)
			err = errAborted
		}
	}()
	if err := p.establish(c); err != nil {
		return err
	}
	return p.server.Load().ServeConn(c) // closes c
}

func (p *Proxy) establish(c *clientConn) error {
	if tc, ok := c.raw.(*net.TCPConn); ok {
		cfg := net.KeepAliveConfig{Enable: true, Idle: clientKeepAlive, Interval: 15 * time.Second, Count: 4}
		if err := tc.SetKeepAliveConfig(cfg); err != nil {
			return err
		}
	}
	if p.cfg.ProxyProtocol {
		conn := proxyproto.NewConn(c.Conn, proxyproto.WithPolicy(proxyproto.REQUIRE), proxyproto.SetReadHeaderTimeout(p.tuned.Load().Timeouts.Read))
		if conn.ProxyHeader() == nil {
			p.warn(&p.warned.proxyHeader, c, "closed a connection without a PROXY protocol header: with proxy_protocol on, every client and health check of this port must send one; "+
				"have the balancer send it, or set proxy_protocol: false")
			return errNoProxyHeader
		}
		c.Conn = conn
	}
	if p.cfg.TLS != nil {
		conn := tls.Server(c.Conn, p.cfg.TLS)
		ctx, cancel := context.WithTimeout(context.Background(), p.tuned.Load().Timeouts.Read)
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
				p.warn(&p.warned.plain, c, "closed a connection that does not speak TLS: use https:// for this port, or remove tls_cert to serve plain HTTP")
			}
			return errHandshake
		}
		c.Conn = conn
	}
	// A PROXY header may carry no addresses.
	if peer := c.Conn.RemoteAddr(); peer != nil {
		if host, _, err := net.SplitHostPort(peer.String()); err == nil {
			c.forwarded = []byte(host)
		}
	}
	return nil
}

var (
	errNoProxyHeader = errors.New("no valid PROXY header")
	errHandshake     = errors.New("tls handshake failed")
)

// Only the class is logged: the error's text may quote the client.
func (p *Proxy) logBroken(c *clientConn, err error) {
	class := "malformed"
	var opErr *net.OpError
	switch {
	case errors.Is(err, errNoProxyHeader) || errors.Is(err, errHandshake):
		class = err.Error()
	case errors.Is(err, errAborted):
		return // logged already
	case errors.Is(err, os.ErrDeadlineExceeded):
		class = "timeout"
	// fasthttp wraps some EOFs without %w.
	case errors.As(err, &opErr) || errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "EOF"):
		class = "closed"
	}
	p.cfg.Log.Debug().Str("peer", c.raw.RemoteAddr().String()).Str("class", class).Msg("connection ended early")
}

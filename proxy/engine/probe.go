package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
)

// Ailment is what a probe found wrong with an engine.
type Ailment uint8

// Any status below 500 is a sign of life: engines may want keys, lack the path, or redirect.
const (
	Alive     Ailment = iota
	Refused           // nothing listens
	NoRoute           // other connection failure
	Silent            // connected, no answer in time
	Broken            // connection lost, or not HTTP
	Sick              // 5xx
	Untrusted         // no TLS or trusted certificate
	ailments
)

// Ailments is the number of ailments, Alive included.
const Ailments = int(ailments)

const maxProbeAnswer = 64 << 10

// modelsPath replaces a missing health path.
const modelsPath = "/v1/models"

// Prober probes one engine. Safe for concurrent use.
type Prober struct {
	Client *http.Client // must not follow redirects to other hosts; bounds the probe with ctx
	URL    string       // without a trailing slash
	Key    string       // bearer token, if not empty

	missing atomic.Pointer[string] // the path that was last answered 404; nil: none
}

// Probe probes once. The error, nil for Alive, explains the ailment; one that wraps
// context.Canceled says nothing about the engine.
func (p *Prober) Probe(ctx context.Context, path string) (Ailment, error) {
	if missing := p.missing.Load(); missing != nil && *missing == path {
		path = modelsPath
	}
	var reached atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { reached.Store(true) },
		ConnectDone: func(_, _ string, err error) { // a busy engine may accept but not finish the TLS handshake
			if err == nil {
				reached.Store(true)
			}
		},
	})
	status, err := p.get(ctx, path)
	if err == nil && status == http.StatusNotFound && path != modelsPath {
		p.missing.Store(new(path))
		path = modelsPath
		status, err = p.get(ctx, path)
	}
	switch {
	case err != nil:
		p.missing.Store(nil) // the engine may come back as another release
		return ailmentOf(err, reached.Load()), fmt.Errorf("%s: %w", path, err)
	case status >= 500:
		return Sick, fmt.Errorf("%s: answered %d", path, status)
	}
	return Alive, nil
}

func (p *Prober) get(ctx context.Context, path string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return 0, err
	}
	if p.Key != "" {
		req.Header.Set("Authorization", "Bearer "+p.Key)
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	// So that the connection can be reused.
	_, _ = io.CopyN(io.Discard, resp.Body, maxProbeAnswer)
	return resp.StatusCode, nil
}

func ailmentOf(err error, reached bool) Ailment {
	var (
		timeout     net.Error
		op          *net.OpError
		certificate *tls.CertificateVerificationError
		alert       tls.AlertError
		record      tls.RecordHeaderError
	)
	late := errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.As(err, &certificate), errors.As(err, &alert), errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return Untrusted
	case late && reached:
		return Silent
	case late, errors.As(err, &op) && op.Op == "dial":
		return NoRoute
	}
	return Broken
}

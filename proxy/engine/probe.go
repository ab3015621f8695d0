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

// The ailments. Any answer below 500 is a sign of life: engines want keys, have other paths, or redirect.
const (
	Alive     Ailment = iota
	Refused           // nothing listens
	NoRoute           // no connection for another reason
	Silent            // took the connection, and gave no answer in time
	Broken            // connection lost before the answer, or no HTTP
	Sick              // answered 5xx
	Untrusted         // no TLS, or a certificate that is not trusted
	ailments
)

// Ailments is how many there are, Alive included.
const Ailments = int(ailments)

// maxProbeAnswer bounds what is read of an answer, so that the connection can be used again.
const maxProbeAnswer = 64 << 10

// modelsPath is asked for where there is no health path: every engine of this kind lists its models.
const modelsPath = "/v1/models"

// Prober asks one engine whether it lives. Safe for concurrent use.
type Prober struct {
	Client *http.Client // must not follow redirects to elsewhere; its Timeout and ctx bound the probe
	URL    string       // of the engine, without a slash at the end
	Path   string       // such as /health
	Key    string       // sent as a bearer token if not empty

	noPath atomic.Bool // Path was answered 404: modelsPath is asked
}

// Probe asks once. The error says more about an ailment; it is nil for Alive. If ctx was cancelled rather than timed out,
// the error wraps context.Canceled and says nothing of the engine.
func (p *Prober) Probe(ctx context.Context) (Ailment, error) {
	path := p.Path
	if p.noPath.Load() {
		path = modelsPath
	}
	var reached atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { reached.Store(true) },
		ConnectDone: func(_, _ string, err error) { // a busy engine does not get to a handshake of TLS either
			if err == nil {
				reached.Store(true)
			}
		},
	})
	status, err := p.get(ctx, path)
	if err == nil && status == http.StatusNotFound && path != modelsPath {
		p.noPath.Store(true)
		path = modelsPath
		status, err = p.get(ctx, path)
	}
	switch {
	case err != nil:
		p.noPath.Store(false) // what comes back may be another release
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
	// The status has said it; the rest is read for the connection's sake.
	_, _ = io.CopyN(io.Discard, resp.Body, maxProbeAnswer)
	return resp.StatusCode, nil
}

// ailmentOf judges an error; reached: there was a connection.
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

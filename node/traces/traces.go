// Package traces sends a span of each traced request to an OpenTelemetry collector, by OTLP over HTTP in Protobuf. A span never holds a
// prompt or an answer.
package traces

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/encoding/protowire"

	"grapevine.example/proxy"
)

const (
	// maxWaiting bounds, in bytes, the spans that wait for the collector; further ones are dropped and counted.
	maxWaiting = 8 << 20
	// gathering is how long spans wait for others to be sent with them: a post costs as much as a hundred spans. At 700 bytes each, 12,000 spans
	// a second fit in maxWaiting.
	gathering = time.Second
	// tries bounds how often a batch is sent, 1, 2 and 4 s apart.
	tries       = 4
	sendTimeout = 10 * time.Second
	// lastTimeout bounds how long the last spans delay the end of the node.
	lastTimeout = 2 * time.Second
	maxAnswer   = 64 << 10 // bytes
	warnEvery   = time.Minute
)

// Config describes an Exporter.
type Config struct {
	Node    string
	Cluster string
	Version string
	Log     zerolog.Logger
}

// Target is a collector. Immutable.
type Target struct {
	url     string
	headers http.Header
}

// Exporter gathers spans and sends them. Safe for concurrent use.
type Exporter struct {
	target atomic.Pointer[Target] // nil: none
	head   []byte                 // of every batch, without its lengths
	bodies [2]int                 // where in a batch the two messages begin that hold its spans
	client *http.Client
	log    zerolog.Logger
	pause  time.Duration // before the second try; doubled before each further one
	warned time.Time     // by Run alone

	sent, dropped atomic.Uint64

	mu      sync.Mutex
	waiting []finished
	texts   []byte // of waiting, one behind the other
	size    int    // about what waiting takes as spans, in bytes

	usedWaiting []finished // memory of the batch before, by flush alone
	usedTexts   []byte
}

// URL returns where spans are posted: /v1/traces under the base URL of a collector.
func URL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("want the base URL of a collector, such as http://127.0.0.1:4318")
	}
	return u.JoinPath("v1", "traces").String(), nil
}

// NewTarget returns the collector at endpoint, see URL; nil if that is empty. Posts carry headers, see ParseHeaders; they may be nil.
func NewTarget(endpoint string, headers http.Header) (*Target, error) {
	if endpoint == "" {
		return nil, nil
	}
	target, err := URL(endpoint)
	if err != nil {
		return nil, err
	}
	return &Target{url: target, headers: headers}, nil
}

// New returns an exporter that sends nothing until Run, and drops spans while it has no target.
func New(c Config) *Exporter {
	var m message
	spans := m.begin(1, long) // ResourceSpans, alone in an ExportTraceServiceRequest
	resource := m.begin(1, short)
	words(&m, 1, "service.name", "grapevine")
	words(&m, 1, "service.namespace", c.Cluster)
	words(&m, 1, "service.instance.id", c.Node)
	words(&m, 1, "service.version", c.Version)
	m.end(resource, short)
	scoped := m.begin(2, long)
	scope := m.begin(1, short)
	m.text(1, "grapevine")
	m.end(scope, short)
	return &Exporter{
		head: m, bodies: [2]int{spans, scoped}, log: c.Log, pause: time.Second,
		client: &http.Client{
			Transport: &http.Transport{MaxIdleConns: 1, IdleConnTimeout: time.Minute}, Timeout: sendTimeout,
			// Another host must not get the headers' credentials.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Use sends spans to another collector from the next batch on; nil: to none.
func (x *Exporter) Use(t *Target) { x.target.Store(t) }

// Target is the collector in use, or nil.
func (x *Exporter) Target() *Target { return x.target.Load() }

// Sent counts the spans that the collector took.
func (x *Exporter) Sent() uint64 { return x.sent.Load() }

// Dropped counts the spans that were lost: the collector was too slow, failed or refused them.
func (x *Exporter) Dropped() uint64 { return x.dropped.Load() }

// Observe adds the span of a finished request if its trace is recorded; r is valid during the call only.
func (x *Exporter) Observe(r *proxy.Record) {
	if !r.Trace.Recorded() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.size >= maxWaiting {
		x.dropped.Add(1)
		return
	}
	n := len(x.texts)
	x.waiting, x.texts = finish(x.waiting, x.texts, r)
	x.size += spanSize + len(x.texts) - n
}

// Run sends spans until ctx ends, then once more what waits.
func (x *Exporter) Run(ctx context.Context) {
	defer x.client.CloseIdleConnections()
	ticker := time.NewTicker(gathering)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
			defer cancel()
			x.flush(last)
			return
		case <-ticker.C:
			x.flush(ctx)
		}
	}
}

// flush must not run twice at the same time.
func (x *Exporter) flush(ctx context.Context) {
	x.mu.Lock()
	list, texts, size := x.waiting, x.texts, x.size
	if len(list) == 0 {
		x.mu.Unlock()
		return
	}
	x.waiting, x.texts, x.size = x.usedWaiting, x.usedTexts, 0
	x.mu.Unlock()
	count := len(list)
	// Not the last batch's memory: a request that timed out may still be sent from it.
	batch := append(make([]byte, 0, len(x.head)+size+size/8), x.head...)
	batch = appendSpans(batch, list, texts)
	x.usedWaiting, x.usedTexts = nil, nil
	if cap(list) <= 2*count+64 { // else a burst was larger
		clear(list)
		x.usedWaiting, x.usedTexts = list[:0], texts[:0]
	}
	for _, body := range x.bodies {
		message(batch).end(body, long)
	}
	target := x.target.Load()
	if target == nil { // of requests that began while there was one
		x.dropped.Add(uint64(count))
		return
	}
	refused, err := x.send(ctx, target, batch)
	if err != nil {
		refused = count
		if time.Since(x.warned) >= warnEvery {
			x.warned = time.Now()
			x.log.Warn().Err(err).Msg("the collector of otlp_endpoint takes no spans: they are dropped and counted")
		}
	}
	refused = min(refused, count)
	x.dropped.Add(uint64(refused))
	x.sent.Add(uint64(count - refused))
}

// send repeats what the protocol lets clients repeat. refused is what the collector left out of a batch that it accepted.
func (x *Exporter) send(ctx context.Context, target *Target, batch []byte) (refused int, err error) {
	for try := range tries {
		var again bool
		if refused, again, err = x.post(ctx, target, batch); err == nil || !again || try == tries-1 {
			break
		}
		select {
		case <-time.After(x.pause << try):
		case <-ctx.Done():
			return 0, err
		}
	}
	return refused, err
}

func (x *Exporter) post(ctx context.Context, target *Target, batch []byte) (refused int, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.url, bytes.NewReader(batch))
	if err != nil {
		return 0, false, err
	}
	maps.Copy(req.Header, target.headers)
	req.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := x.client.Do(req)
	if err != nil {
		return 0, true, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, true, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return refusedBy(text), false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return 0, again, fmt.Errorf("%s answers %s: %.200q", req.URL.Redacted(), resp.Status, text)
}

// refusedBy returns how many spans an ExportTraceServiceResponse refuses; none if it is unreadable.
func refusedBy(answer []byte) int {
	partial, _ := field(answer, 1, protowire.ConsumeBytes)
	rejected, _ := field(partial, 1, protowire.ConsumeVarint)
	return int(min(max(int64(rejected), 0), math.MaxInt32))
}

// field returns the value of a message's first field of that number; false if it has none or is unreadable.
func field[T any](m []byte, number protowire.Number, consume func([]byte) (T, int)) (value T, ok bool) {
	for len(m) > 0 {
		got, kind, n := protowire.ConsumeTag(m)
		if n < 0 {
			return value, false
		}
		if m = m[n:]; got == number {
			value, n = consume(m)
			return value, n >= 0
		}
		if n = protowire.ConsumeFieldValue(got, kind, m); n < 0 {
			return value, false
		}
		m = m[n:]
	}
	return value, false
}

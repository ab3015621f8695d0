// Package accesslog writes a line of JSON for each finished request, or for some of them. A line names the client, the model and
// the backend, and gives tokens and times. It never holds a prompt or an answer.
package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
)

// Which says which requests are logged. The zero value is none.
type Which struct {
	errors bool
	share  float64 // of all requests
}

var errWhich = errors.New("want off, errors, all or sample:SHARE, where SHARE lies between 0 and 1")

// Parse reads "off", "errors", "all" or "sample:SHARE". A sample has all errors, too.
func Parse(s string) (Which, error) {
	switch s {
	case "off":
		return Which{}, nil
	case "errors":
		return Which{errors: true}, nil
	case "all":
		return Which{share: 1}, nil
	}
	text, sample := strings.CutPrefix(s, "sample:")
	share, err := strconv.ParseFloat(text, 64)
	if !sample || err != nil || !(share > 0 && share < 1) {
		return Which{}, errWhich
	}
	return Which{errors: true, share: share}, nil
}

func (w Which) wants(r *proxy.Record) bool {
	return w.share >= 1 || w.errors && failed(r) || w.share > 0 && rand.Float64() < w.share
}

// failed reports whether the router or an engine failed. A wrong request is no failure, nor is a client that left.
func failed(r *proxy.Record) bool {
	return r.Status >= 500 || r.Status == 429 || r.Broken
}

// queued lines, of some 500 bytes, wait to be written; further ones are dropped and counted.
const queued = 4096

// Log writes lines behind the requests, so that a slow disk delays none. Safe for concurrent use.
type Log struct {
	log     zerolog.Logger
	which   atomic.Pointer[Which]
	dropped atomic.Uint64

	lines  chan []byte
	done   chan struct{}
	stop   sync.Once
	closed chan struct{}

	stdout io.Writer // for lines without a file

	mu   sync.Mutex // guards the fields below
	path string     // "": stdout
	file *os.File   // nil: stdout, or not open yet
}

// New returns a log to a file, or to out if path is empty. Until Open, lines wait.
func New(path string, out io.Writer, node string, which Which) *Log {
	l := &Log{path: path, stdout: out, lines: make(chan []byte, queued), done: make(chan struct{}), closed: make(chan struct{})}
	l.log = zerolog.New((*enqueue)(l)).With().Timestamp().Str("component", "access").Str("node", node).Logger()
	l.which.Store(&which)
	return l
}

// Open begins to write, once. The caller must call Close.
func (l *Log) Open() error {
	out, err := l.Prepare(l.Path())
	if err != nil {
		return err
	}
	out.Use()
	go l.write()
	return nil
}

// Output is a file, or stdout, to which lines may go from now on. Use or Discard it.
type Output struct {
	log  *Log
	path string
	file *os.File
}

// Prepare opens a file, also the present one by its name, after it was renamed; "": stdout.
func (l *Log) Prepare(path string) (*Output, error) {
	if path == "" {
		return &Output{log: l}, nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640) //nolint:gosec // the group may read logs
	if err != nil {
		return nil, fmt.Errorf("access_log_file: %w", err)
	}
	return &Output{l, path, file}, nil
}

// Use makes the log write there, and closes the file of before.
func (o *Output) Use() {
	o.log.mu.Lock()
	defer o.log.mu.Unlock()
	if old := o.log.file; old != nil {
		_ = old.Close() // its lines are written
	}
	o.log.path, o.log.file, o.file = o.path, o.file, nil
}

// Discard closes the file unless it is in use.
func (o *Output) Discard() {
	if o.file != nil {
		_ = o.file.Close()
	}
}

// Path names the file in use; "": stdout.
func (l *Log) Path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path
}

// Set changes which requests are logged.
func (l *Log) Set(which Which) { l.which.Store(&which) }

// Which returns which requests are logged.
func (l *Log) Which() Which { return *l.which.Load() }

// Dropped counts lines that were lost because the file was too slow, or failed.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Close writes what waits and closes the file. Later requests are not logged.
func (l *Log) Close() error {
	l.stop.Do(func() { close(l.done) })
	<-l.closed
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		return l.file.Close()
	}
	return nil
}

// Observe logs a finished request; r is valid during the call only.
func (l *Log) Observe(r *proxy.Record) {
	if !l.which.Load().wants(r) {
		return
	}
	e := l.log.Log().Bytes("id", r.ID).Bytes("peer", r.Peer).Str("client", r.Client).
		Bytes("method", r.Method).Bytes("path", r.Path).Bytes("model", r.Model).Bool("stream", r.Stream).
		Int("status", r.Status).Str("backend", r.Backend).Int("attempts", r.Attempts).
		Int("bytes_in", r.RequestBytes).Int64("bytes_out", r.ResponseBytes)
	if d := r.Decision; d != nil {
		e.Str("strategy", d.Strategy).Str("rung", d.Rung.String()).Int("matched_tokens", r.MatchedTokens).Int("predicted_tokens", d.PredictedTokens).Bool("exact", d.Exact)
	}
	if len(r.Target) > 0 {
		e.Bytes("engine_model", r.Target)
	}
	if r.Prefill.Backend != "" {
		e.Str("prefill", r.Prefill.Backend).Int64("prefill_ms", r.Prefill.Took.Milliseconds())
		if r.Prefill.Failed != books.None {
			e.Stringer("prefill_failed", r.Prefill.Failed)
		}
	}
	for _, count := range []struct {
		name   string
		tokens int
	}{{"prompt_tokens", r.PromptTokens}, {"cached_tokens", r.CachedTokens}, {"output_tokens", r.OutputTokens}} {
		if count.tokens >= 0 {
			e.Int(count.name, count.tokens)
		}
	}
	e.Int64("overhead_us", r.Overhead.Microseconds()).Float64("queue_ms", ms(r.Queue))
	if r.Waited > 0 {
		e.Float64("waited_ms", ms(r.Waited)).Stringer("priority", r.Priority)
	}
	if r.Refused != "" {
		e.Str("refused", r.Refused)
	}
	if r.TTFT > 0 {
		e.Float64("ttft_ms", ms(r.TTFT))
	}
	if r.Failed != books.None {
		e.Stringer("failed", r.Failed)
	}
	e.Float64("total_ms", ms(r.Total)).Send()
}

// ms keeps microseconds: a refusal takes less than a millisecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// enqueue is the Log as zerolog's writer.
type enqueue Log

func (q *enqueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

func (l *Log) write() {
	defer close(l.closed)
	var buffer bytes.Buffer
	waiting := func() {
		for range len(l.lines) {
			buffer.Write(<-l.lines)
		}
		l.mu.Lock()
		out := l.stdout
		if l.file != nil {
			out = l.file
		}
		_, err := out.Write(buffer.Bytes())
		l.mu.Unlock()
		if err != nil {
			l.dropped.Add(uint64(bytes.Count(buffer.Bytes(), []byte{'\n'})))
		}
		buffer.Reset()
	}
	for {
		select {
		case line := <-l.lines:
			buffer.Write(line)
			waiting()
		case <-l.done:
			waiting()
			return
		}
	}
}

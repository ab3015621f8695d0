package engine

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// Fault is the body of POST /emulator/fault.
type Fault struct {
	// Kind is one of
	//
	//	slow     every step takes Factor times as long, until none
	//	hang     requests are never answered, or not beyond AfterBytes of the body
	//	reset    the connection is reset before the header, or after AfterBytes of the body
	//	503      503 with Retry-After
	//	die      stop listening and close all connections; this request is still answered
	//	amnesia  empty the cache once; running jobs are recomputed
	//	restart  the same without a cache event, and the stream of events begins anew, as with a new process
	//	lie      until none, usage reports Factor times the prompt tokens, and the uncached ones as cached
	//	lose     until none, subscribers do not get a share of Factor of the batches of cache events, except by a replay
	//	mute     until none, the stream of cache events brings nothing: its connections stay open, and end with the fault
	//	none     end all faults; requests that hang stay so until their client leaves
	Kind string `json:"kind"`
	// Factor is for slow, lie and lose. A lie below 1 can report more cached tokens than prompt tokens.
	Factor float64 `json:"factor"`
	// Count ends hang, reset and 503 after so many requests; 0 means never.
	Count int `json:"count"`
	// AfterBytes is how much of the body passes unharmed; with 0 not even the header does.
	AfterBytes int64 `json:"after_bytes"`
	// All extends the fault to /health, /metrics and the rest. It is the default of a hang without
	// Count and AfterBytes: there the whole process hangs.
	All *bool `json:"all"`
}

type faults struct {
	mu   sync.Mutex
	now  Fault
	left int
	lie  float64

	suffered int64
}

// Inject starts a fault. The error names the invalid field.
func (s *Server) Inject(f Fault) error {
	switch f.Kind {
	case "slow", "lie":
		if !(f.Factor > 0) || f.Factor > 1e6 {
			return badRequest("factor", "%s needs a factor above 0, at most 1000000", f.Kind)
		}
		if f.Kind == "slow" {
			return s.ranks.slow(f.Factor)
		}
		s.faults.mu.Lock()
		s.faults.lie = f.Factor
		s.faults.mu.Unlock()
		return nil
	case "amnesia":
		return s.ranks.each((*Model).Clear)
	case "restart":
		return s.driver.do(s.restart)
	case "mute", "lose":
		switch {
		case s.events == nil:
			return badRequest("kind", "%s needs a stream of cache events", f.Kind)
		case f.Kind == "mute":
			s.events.mute()
		case !(f.Factor > 0) || f.Factor > 1:
			return badRequest("factor", "lose needs a share above 0, at most 1")
		default:
			s.events.lose(f.Factor)
		}
		return nil
	case "die":
		s.die()
		return nil
	case "none", "hang", "reset", "503":
	default:
		return badRequest("kind", "unknown fault %q", f.Kind)
	}
	if f.Count < 0 || f.AfterBytes < 0 {
		return badRequest("count", "count and after_bytes must not be negative")
	}
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.now, s.faults.left = f, f.Count
	if f.Kind == "none" {
		s.faults.lie = 0
		if s.events != nil {
			s.events.unmute()
			s.events.lose(s.cfg.EventsLoss / 100)
		}
		return s.ranks.slow(1)
	}
	return nil
}

func (f *faults) take(inference bool) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now
	if now.Kind == "" || now.Kind == "none" {
		return Fault{}, false
	}
	all := now.Kind == "hang" && now.Count == 0 && now.AfterBytes == 0
	if now.All != nil {
		all = *now.All
	}
	if !inference && !all {
		return Fault{}, false
	}
	if now.Count > 0 {
		if f.left--; f.left == 0 {
			f.now = Fault{}
		}
	}
	f.suffered++
	return now, true
}

func (f *faults) told(prompt, cached int) (saysPrompt, saysCached int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lie == 0 {
		return prompt, cached
	}
	return int(f.lie * float64(prompt)), prompt - cached
}

func (s *Server) suffer(w http.ResponseWriter, r *http.Request) (out http.ResponseWriter, done bool) {
	_, inference := paths[r.URL.Path]
	f, any := s.faults.take(inference)
	if !any {
		return w, false
	}
	if f.Kind == "503" {
		writeError(w, endpointOf(r.URL.Path), &apiError{status: http.StatusServiceUnavailable, message: "The engine is overloaded (injected fault)."})
		return w, true
	}
	fw := &faultWriter{w: w, ctx: r.Context(), fault: f, left: f.AfterBytes}
	if f.AfterBytes == 0 {
		// Read the request first: a reset with unread data would look like another fault, and the
		// server notices a client that leaves only once the body is read.
		if _, err := s.readBody(w, r); err == nil || f.Kind == "reset" {
			fw.strike()
		}
		return w, true
	}
	return fw, false
}

type faultWriter struct {
	w     http.ResponseWriter
	ctx   context.Context
	fault Fault
	left  int64
}

func (f *faultWriter) Header() http.Header         { return f.w.Header() }
func (f *faultWriter) WriteHeader(status int)      { f.w.WriteHeader(status) }
func (f *faultWriter) Unwrap() http.ResponseWriter { return f.w }

func (f *faultWriter) Write(p []byte) (int, error) {
	if int64(len(p)) < f.left {
		f.left -= int64(len(p))
		return f.w.Write(p)
	}
	if _, err := f.w.Write(p[:f.left]); err != nil {
		return 0, err
	}
	_ = http.NewResponseController(f.w).Flush() // the connection is about to fail anyway
	f.strike()
	return 0, context.Canceled
}

func (f *faultWriter) strike() {
	if f.fault.Kind == "hang" {
		<-f.ctx.Done()
		panic(http.ErrAbortHandler)
	}
	resetConnection(f.ctx)
	panic(http.ErrAbortHandler)
}

func resetConnection(ctx context.Context) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only if the connection is closed already
		_ = tcp.Close()
	}
}

func (s *Server) faultHandler(w http.ResponseWriter, _ *http.Request, body []byte) (any, error) {
	var f Fault
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, parseError(err)
	}
	if f.Kind == "die" {
		writeJSON(w, http.StatusOK, object{"fault": f.Kind})
		_ = http.NewResponseController(w).Flush() // the client may have left
		s.die()
		return nil, nil
	}
	return object{"fault": f.Kind, "count": strconv.Itoa(f.Count)}, s.Inject(f)
}

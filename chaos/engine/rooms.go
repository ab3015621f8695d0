package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Part is the part of requests that an engine serves, as SGLang's with --disaggregation-mode.
type Part string

const (
	PartPrefill Part = "prefill"
	PartDecode  Part = "decode"
)

// bootstrap is what both parts of a request of SGLang's name. The bootstrap server of an emulated
// prefill engine is at its own port.
type bootstrap struct {
	Host string `json:"bootstrap_host"`
	Port int    `json:"bootstrap_port"`
	Room *int64 `json:"bootstrap_room"`
}

// maxRooms bounds the rooms in use and those that are remembered as used.
const maxRooms = 4096

// rooms are where a prefill engine meets decode engines, one for each request.
type rooms struct {
	mu   sync.Mutex
	open map[int64]*room
	used map[int64]bool
	line []int64 // of used, oldest first
	last []byte  // the latest prompt
	prev []byte  // the latest other one
}

type room struct {
	text    []byte
	entered chan struct{} // the decode engine asks
	ready   chan struct{} // the prompt is computed
	given   chan struct{} // the KV cache is transferred
	left    chan struct{} // the prefill's part has ended
	once    sync.Once     // of entered
	giving  sync.Mutex    // orders closes of given
}

var errRoomUsed = badRequest("bootstrap_room", "This bootstrap_room was used before.")

// room returns an open room, and makes it if need be. A number that was used before is errRoomUsed:
// SGLang's schedulers crash or mix requests.
func (r *rooms) room(number int64) (*room, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.open[number]; at != nil {
		return at, nil
	}
	switch {
	case r.used[number]:
		return nil, errRoomUsed
	case len(r.open) >= maxRooms:
		return nil, errBusy
	case r.open == nil:
		r.open, r.used = make(map[int64]*room), make(map[int64]bool)
	}
	at := &room{entered: make(chan struct{}), ready: make(chan struct{}), given: make(chan struct{}), left: make(chan struct{})}
	r.open[number] = at
	return at, nil
}

// offer opens the room for a decode engine that wants the prompt's KV cache.
func (r *rooms) offer(number int64, text []byte) (*room, error) {
	at, err := r.room(number)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.text != nil {
		return nil, errRoomUsed
	}
	at.text = text
	if string(text) != string(r.last) {
		r.prev, r.last = r.last, text
	}
	return at, nil
}

func (r *rooms) close(number int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, number)
	r.used[number] = true
	if r.line = append(r.line, number); len(r.line) > maxRooms {
		delete(r.used, r.line[0])
		r.line = r.line[1:]
	}
}

// other returns the text of an earlier prompt.
func (r *rooms) other() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.prev) > 0 {
		return r.prev
	}
	return []byte("KV cache of nothing")
}

// checkPart refuses what SGLang's engines of one part cannot serve.
func (s *Server) checkPart(c *call) error {
	b := &c.fields.bootstrap
	switch {
	case s.cfg.Part == "" || !c.generates():
		return nil
	case b.Room == nil || b.Port == 0 || len(c.prompts) != 1 || c.n != 1:
		return badRequest("bootstrap_room", "This engine serves one part of requests for one reply: bootstrap_host, bootstrap_port and bootstrap_room expected.")
	}
	return nil
}

// prefillPart computes a prompt once a decode engine has come, and answers once that has its KV cache.
// It never streams.
func (s *Server) prefillPart(ctx context.Context, c *call) (any, error) {
	number := *c.fields.Room
	r, err := s.rooms.offer(number, c.prompts[0])
	if err != nil {
		return nil, err
	}
	defer func() {
		s.rooms.close(number)
		close(r.left)
	}()
	c.output = 1
	f := c.flight()
	s.driver.prepare(f)
	defer func() {
		if f.abort() {
			s.aborted.Add(1)
		}
	}()
	for _, step := range []func() error{
		func() error { return s.meet(ctx, r.entered) },
		func() error { return s.driver.launch(f) },
		func() error { return f.wait(ctx) },
		func() error { close(r.ready); return s.meet(ctx, r.given) },
	} {
		if err := step(); ctx.Err() != nil {
			panic(http.ErrAbortHandler) // the client has left or the engine is closing: send no answer
		} else if err != nil {
			return nil, err
		}
	}
	t := told{c: c, f: f, s: s, created: time.Now().Unix()}
	return t.script().whole(), nil
}

// meet waits at most for the time of a lease.
func (s *Server) meet(ctx context.Context, other <-chan struct{}) error {
	select {
	case <-other:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.cfg.Lease):
		return &apiError{status: http.StatusInternalServerError, message: "The other part of the request did not come."}
	}
}

type roomRequest struct {
	Room   int64 `json:"room"`
	Tokens int   `json:"tokens"`
}

// roomHandler is POST /emulator/room, which decode engines ask.
func (s *Server) roomHandler(_ http.ResponseWriter, req *http.Request, body []byte) (any, error) {
	var q roomRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, parseError(err)
	}
	r, err := s.rooms.room(q.Room)
	if errors.Is(err, errRoomUsed) {
		return given{s.rooms.other()}, nil
	}
	if err != nil {
		return nil, err
	}
	s.leases.given.Add(1)
	r.once.Do(func() { close(r.entered) })
	gone := &apiError{status: http.StatusInternalServerError, message: "The prefill failed."}
	select {
	case <-r.ready:
	case <-r.left:
		return nil, gone
	case <-req.Context().Done():
		panic(http.ErrAbortHandler)
	case <-time.After(s.cfg.Lease):
		return nil, gone
	}
	select {
	case <-time.After(s.transferTime(q.Tokens)):
	case <-r.left:
		return nil, gone
	case <-req.Context().Done():
		panic(http.ErrAbortHandler)
	}
	r.giving.Lock()
	defer r.giving.Unlock()
	select {
	case <-r.given:
		return given{s.rooms.other()}, nil // the blocks have another prompt's KV cache by now
	default:
		close(r.given)
		return given{r.text}, nil
	}
}

// decodePart launches the flight once the prefill engine has given the KV cache.
func (s *Server) decodePart(ctx context.Context, c *call, f *flight) error {
	return s.loading(ctx, f, func() error {
		b, seat := &c.fields.bootstrap, f.seats[0]
		tokens, err := s.missing(seat)
		if err != nil {
			return err
		}
		var answer given
		if err := post(ctx, net.JoinHostPort(b.Host, strconv.Itoa(b.Port)), "/emulator/room", roomRequest{*b.Room, tokens}, &answer); err != nil {
			return &apiError{status: http.StatusInternalServerError, message: fmt.Sprintf("KV cache transfer failed: %v", err)}
		}
		c.loaded(seat, answer.Text)
		return nil
	})
}

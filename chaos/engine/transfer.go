package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// transferParams are vLLM's kv_transfer_params with the NIXL connector: a request for a prompt alone
// asks for them, and the request for the reply, at another engine, has those of the answer.
type transferParams struct {
	RemoteDecode  bool   `json:"do_remote_decode"`
	RemotePrefill bool   `json:"do_remote_prefill"`
	Engine        string `json:"remote_engine_id"`
	Request       string `json:"remote_request_id"`
	Blocks        []int  `json:"remote_block_ids"`
	Host          string `json:"remote_host"`
	Port          int    `json:"remote_port"`
	Ranks         int    `json:"tp_size"`
	Tokens        int    `json:"remote_num_tokens"`
}

func (c *call) leases() bool {
	return c.fields.Transfer != nil && c.fields.Transfer.RemoteDecode && c.generates()
}

func (c *call) fetches() bool {
	return c.fields.Transfer != nil && c.fields.Transfer.RemotePrefill && c.generates()
}

// leases are the prompts whose KV cache other engines may fetch, each in the blocks of one number.
// The engine does not hold their memory, unlike vLLM. It uses a number again at once: an engine that
// fetches twice, or too late, gets the blocks of another prompt, as from vLLM.
type leases struct {
	mu    sync.Mutex
	kept  [256]lease
	next  int
	given atomic.Int64 // transfers begun
}

type lease struct {
	request string // "": fetched
	text    []byte
	until   time.Time
}

func (s *Server) lease(ctx context.Context, c *call) transferParams {
	host, port, _ := net.SplitHostPort(ctx.Value(http.LocalAddrContextKey).(net.Addr).String())
	number, _ := strconv.Atoi(port)
	l := &s.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.next % len(l.kept)
	l.next++
	l.kept[at] = lease{request: s.id("kv-"), text: c.prompts[0], until: time.Now().Add(s.cfg.Lease)}
	return transferParams{
		RemotePrefill: true, Engine: s.nonce, Request: l.kept[at].request, Blocks: []int{at}, Host: host, Port: number, Ranks: 1,
		Tokens: c.promptTokens(),
	}
}

// take returns the text of the prompt in the blocks, and frees them.
func (l *leases) take(request string, at int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.kept[at]
	if k.request == request && request != "" && time.Now().Before(k.until) {
		k.request = ""
		return k.text
	}
	for i := range l.kept {
		if other := &l.kept[(l.next+i)%len(l.kept)]; len(other.text) > 0 && !bytes.Equal(other.text, k.text) {
			return other.text
		}
	}
	return []byte("KV cache of nothing")
}

type giveRequest struct {
	Engine  string `json:"engine"`
	Request string `json:"request"`
	Block   int    `json:"block"`
	Tokens  int    `json:"tokens"`
}

type given struct {
	Text []byte `json:"text"`
}

// giveHandler is POST /emulator/kv: the text of a prompt stands for its KV cache. It answers when the
// transfer is over.
func (s *Server) giveHandler(_ http.ResponseWriter, r *http.Request, body []byte) (any, error) {
	var g giveRequest
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, parseError(err)
	}
	if g.Engine != s.nonce || g.Block < 0 || g.Block >= len(s.leases.kept) {
		return nil, &apiError{status: http.StatusNotFound, message: "This engine has no such KV cache."}
	}
	s.leases.given.Add(1)
	select {
	case <-time.After(s.transferTime(g.Tokens)):
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	return given{s.leases.take(g.Request, g.Block)}, nil
}

func (s *Server) transferTime(tokens int) time.Duration {
	return s.cfg.TransferStart + time.Duration(float64(max(tokens, 0))/s.cfg.TransferRate*float64(time.Second))
}

// fetch launches the flight once the KV cache of its prompt has come, or fails it.
func (s *Server) fetch(ctx context.Context, c *call, f *flight) error {
	p := c.fields.Transfer
	if len(c.prompts) != 1 || c.n != 1 || len(p.Blocks) == 0 {
		return badRequest("kv_transfer_params", "kv_transfer_params of one prompt and one reply expected")
	}
	return s.loading(ctx, f, func() error { return s.load(ctx, c, f.seats[0]) })
}

// loading launches the flight after load, or fails it.
func (s *Server) loading(ctx context.Context, f *flight, load func() error) error {
	if !s.enter() {
		return errStopped
	}
	go func() {
		defer s.work.Done()
		err := load()
		if err == nil {
			err = s.driver.launch(f)
		}
		if err != nil && ctx.Err() == nil { // else the handler ends the flight
			f.fail(err)
		}
	}()
	return nil
}

// kvClient keeps no connections: engines come and go.
var kvClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// load fetches the KV cache of what is not cached here.
func (s *Server) load(ctx context.Context, c *call, seat *seat) error {
	p := c.fields.Transfer
	tokens, err := s.missing(seat)
	if err != nil {
		return err
	}
	var answer given
	if err := post(ctx, net.JoinHostPort(p.Host, strconv.Itoa(p.Port)), "/emulator/kv", giveRequest{p.Engine, p.Request, p.Blocks[0], tokens}, &answer); err != nil {
		return &apiError{status: http.StatusInternalServerError, message: fmt.Sprintf("KV cache transfer failed: %v", err)}
	}
	c.loaded(seat, answer.Text)
	return nil
}

// missing returns how many tokens of the prompt are not cached here.
func (s *Server) missing(seat *seat) (tokens int, err error) {
	err = s.driver.do(func(time.Duration) { tokens = seat.job.PromptTokens - s.driver.model.CachedFor(&seat.job) })
	return tokens, err
}

// loaded makes the reply that to the prompt whose KV cache came.
func (c *call) loaded(seat *seat, text []byte) {
	seat.job.Loaded = seat.job.PromptTokens - 1
	if !bytes.Equal(text, c.prompts[0]) {
		seat.reply = appendReply(nil, xxh3.HashSeed(text, rootKey(c.adapter, c.fields.CacheSalt)), c.output)
		seat.job.OutKeys = nil
	}
}

func post(ctx context.Context, addr, path string, body, answer any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader(mustJSON(body)))
	if err != nil {
		return err
	}
	resp, err := kvClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

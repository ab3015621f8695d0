package raftstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"time"
)

const (
	retryFirst = 5 * time.Millisecond
	retryLast  = 100 * time.Millisecond
	// An attempt that is cut off leaves its outcome unknown.
	leastAttempt = 20 * time.Millisecond
	leaderPoll   = 20 * time.Millisecond
)

// Apply commits a command once, from any node and within Timers.Call. After success State usually
// includes it. Errors: those of the state machine; ErrNoLeader, ErrBarred or ErrStopped if nothing
// was done; ErrUncertain.
func (s *Store) Apply(ctx context.Context, c Command) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, refuse(refusedInvalid, "%v", err)
	}
	e := entry{at: time.Now().UnixMilli(), command: normalCommand(c)}
	rand.Read(e.request[:]) // never fails
	raw := e.encode()
	if len(raw) > MaxCommandBytes {
		return Result{}, refuse(refusedInvalid, "command of %d bytes, at most %d are allowed", len(raw), MaxCommandBytes)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Call)
	defer cancel()
	body, err := s.atLeader(ctx, askApply, raw)
	if err != nil {
		return Result{}, err
	}
	var o outcome
	if err := decode(body, &o); err != nil {
		return Result{}, fmt.Errorf("%w: the leader's answer is damaged: %w", ErrUncertain, err)
	}
	if o.Refuse != nil {
		return o.Result, o.Refuse
	}
	if o.Result.Changed {
		// The command is committed in any case.
		_, _ = s.await(ctx, o.Result.Index)
	}
	return o.Result, nil
}

func normalCommand(c Command) Command {
	switch c := c.(type) {
	case AddBackends:
		list := slices.Clone(c.Backends)
		for i := range list {
			list[i].URL, _ = NormalURL(list[i].URL)
			list[i].Labels = inOrder(list[i].Labels)
		}
		return AddBackends{list}
	case UpdateBackend:
		if c.URL != nil {
			u, _ := NormalURL(*c.URL)
			c.URL = &u
		}
		if c.Labels != nil {
			c.Labels = new(inOrder(*c.Labels))
		}
		return c
	}
	return c
}

func inOrder(labels []string) []string {
	labels = slices.Clone(labels)
	slices.Sort(labels)
	return labels
}

// Read returns a state at least as new as every earlier Apply on any node. Errors are those of
// Apply without ErrUncertain.
func (s *Store) Read(ctx context.Context) (*State, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Call)
	defer cancel()
	body, err := s.atLeader(ctx, askRead, nil)
	if err != nil {
		return nil, err
	}
	var version uint64
	if err := decode(body, &version); err != nil {
		return nil, fmt.Errorf("the leader's answer is damaged: %w", err)
	}
	return s.await(ctx, version)
}

// Transfer makes the voter with this id the leader, or if empty the most advanced one.
func (s *Store) Transfer(ctx context.Context, to string) error {
	body, err := json.Marshal(transferRequest{to})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Call)
	defer cancel()
	_, err = s.atLeader(ctx, askTransfer, body)
	return err
}

var errNotYet = errors.New("this node knows no leader")

// atLeader retries until ctx, which needs a deadline, ends.
func (s *Store) atLeader(ctx context.Context, kind requestKind, payload []byte) ([]byte, error) {
	var (
		hinted    hint
		uncertain error
		last      error
		wait      = retryFirst
		counted   chan rollCall // nil before the first failure
	)
	for {
		if !s.serving() {
			if uncertain != nil && kind == askApply {
				return nil, fmt.Errorf("%w: %w", ErrUncertain, ErrStopped)
			}
			return nil, ErrStopped
		}
		a, sent, err := s.attempt(ctx, &hinted, kind, payload)
		switch {
		case err != nil && sent:
			uncertain = err
		case err != nil:
			last = err
		case a.status == answerDone:
			return a.body, nil
		case a.status == answerRefused:
			return nil, refuse(refusedInvalid, "%s", a.body)
		case a.status == answerBarred && (uncertain == nil || kind != askApply):
			return nil, fmt.Errorf("%w: %s", ErrBarred, a.body)
		case a.status == answerUncertain:
			uncertain = errors.New(string(a.body))
		case a.status == answerNotLeader:
			last = errNotYet
			_ = json.Unmarshal(a.body, &hinted) // or no hint
		default:
			last = errors.New(string(a.body))
		}
		if counted == nil {
			counted = s.count()
		}
		if !s.pause(ctx, wait) {
			return nil, s.gaveUp(kind, uncertain, last, s.missing(counted))
		}
		wait = min(2*wait, retryLast)
	}
}

func (s *Store) serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started && !s.stopping
}

func (s *Store) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.ctx.Done():
		return true
	}
}

func (s *Store) gaveUp(kind requestKind, uncertain, last error, missing string) error {
	switch {
	case uncertain != nil && kind == askApply && missing != "":
		return fmt.Errorf("%w: %w (%s)", ErrUncertain, uncertain, missing)
	case uncertain != nil && kind == askApply:
		return fmt.Errorf("%w: %w", ErrUncertain, uncertain)
	case missing != "":
		return fmt.Errorf("%w: %s", ErrNoLeader, missing)
	case last != nil && !errors.Is(last, errNotYet):
		return fmt.Errorf("%w: %w", ErrNoLeader, last)
	}
	return ErrNoLeader
}

func (s *Store) attempt(ctx context.Context, hinted *hint, kind requestKind, payload []byte) (a answer, sent bool, err error) {
	inst := s.current()
	if s.isLeader(inst) {
		return s.execute(ctx, kind, payload), true, nil
	}
	if s.port == nil {
		return answer{}, false, errNotYet
	}
	to := s.leader(inst)
	if to.Addr == "" || to.ID == s.id {
		to, *hinted = *hinted, hint{}
	}
	if (to.Addr == "" || to.ID == s.id) && len(inst.servers()) == 0 {
		to = s.randomPeer()
	}
	if to.Addr == "" || to.ID == s.id {
		return answer{}, false, errNotYet
	}
	if deadline, _ := ctx.Deadline(); time.Until(deadline) < leastAttempt {
		return answer{}, false, errNotYet
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.spawn(func() { s.abandon(ctx, cancel, inst, to) })
	deadline, _ := ctx.Deadline()
	body := binary.AppendUvarint(nil, uint64(max(0, time.Until(deadline).Milliseconds())))
	return s.caller.call(ctx, to.Addr, kind, append(body, payload...))
}

// randomPeer serves nodes without a configuration.
func (s *Store) randomPeer() hint {
	alive := s.livePeers()
	if len(alive) == 0 {
		return hint{}
	}
	p := alive[mrand.IntN(len(alive))]
	return hint{ID: p.ID, Addr: p.Addr}
}

// abandon cancels a request when another node leads, because the first may hang.
func (s *Store) abandon(ctx context.Context, cancel context.CancelFunc, inst *raftInstance, asked hint) {
	defer cancel()
	ticker := time.NewTicker(leaderPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			if now := s.leader(inst); now.ID != "" && now.ID != asked.ID && asked.ID != "" {
				return
			}
		}
	}
}

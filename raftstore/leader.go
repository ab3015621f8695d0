package raftstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

type transferRequest struct {
	ID string `json:"id"`
}

func handle[T any](body []byte, do func(T) answer) answer {
	var req T
	if err := json.Unmarshal(body, &req); err != nil {
		return answerOf(answerRefused, err)
	}
	return do(req)
}

func (s *Store) isLeader(inst *raftInstance) bool {
	return inst != nil && inst.raft.State() == raft.Leader
}

// Leading says whether this node believes that it leads, wrongly for at most one lease.
func (s *Store) Leading() bool { return s.isLeader(s.current()) }

// Values of the log field "event".
const (
	EventLeaderChanged = "leader_changed"
	EventLeaderLost    = "leader_lost"
	EventDiskFailed    = "disk_failed"
	EventDiskWorks     = "disk_works"
	EventTooOld        = "state_frozen"
)

func (s *Store) noteLeader(inst *raftInstance) {
	now := s.leader(inst)
	if now.ID == s.led {
		return
	}
	s.led = now.ID
	if now.ID == "" {
		s.log.Warn().Str("event", EventLeaderLost).Msg("this node knows no leader: changes wait")
		return
	}
	s.log.Info().Str("event", EventLeaderChanged).Str("leader", now.ID).Str("addr", now.Addr).Msg("leader changed")
}

func (s *Store) leader(inst *raftInstance) hint {
	if inst == nil {
		return hint{}
	}
	addr, id := inst.raft.LeaderWithID()
	if last := inst.heard.Load(); last != nil && last.leader == string(id) && last.term < inst.raft.CurrentTerm() {
		return hint{} // it led an earlier term
	}
	return hint{ID: string(id), Addr: string(addr)}
}

// answerOf is done without an error, else it has the status for failures and the error's text.
func answerOf(failed answerStatus, err error) answer {
	if err == nil {
		return answer{status: answerDone}
	}
	return answer{failed, []byte(err.Error())}
}

func (s *Store) execute(ctx context.Context, kind requestKind, payload []byte) answer {
	inst := s.current()
	if !s.isLeader(inst) {
		return jsonAnswer(answerNotLeader, s.leader(inst))
	}
	if why := s.barred(); why != "" && (kind == askApply || kind == askRead) {
		return answer{answerBarred, []byte(why)}
	}
	if !inst.enter() {
		return answerOf(answerFailed, ErrStopped)
	}
	// raft's futures cannot be cancelled.
	result := make(chan answer, 1)
	go func() {
		defer inst.pending.Done()
		result <- s.carryOut(ctx, inst, kind, payload)
	}()
	select {
	case a := <-result:
		return a
	case <-ctx.Done():
		return answerOf(answerUncertain, fmt.Errorf("the leader did not finish the request: %w", ctx.Err()))
	case <-s.ctx.Done():
		return answerOf(answerUncertain, ErrStopped)
	}
}

func (s *Store) carryOut(ctx context.Context, inst *raftInstance, kind requestKind, payload []byte) answer {
	wait := s.cfg.Timers.Call
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline)
	}
	if wait <= 0 {
		return answerOf(answerFailed, context.DeadlineExceeded)
	}
	switch kind {
	case askApply:
		return s.propose(inst, payload, wait)
	case askRead:
		if err := inst.raft.Barrier(wait).Error(); err != nil {
			return afterRaft(err)
		}
		return answer{answerDone, encode(nil, s.State().Version)}
	case askTransfer:
		return handle(payload, func(req transferRequest) answer { return transfer(inst, req.ID) })
	}
	return answerOf(answerRefused, fmt.Errorf("request of the unknown kind %d", kind))
}

func (s *Store) propose(inst *raftInstance, raw []byte, wait time.Duration) answer {
	e, err := decodeEntry(raw)
	if err == nil {
		err = e.command.validate()
	}
	if err != nil {
		return answer{answerDone, encode(nil, outcome{Refuse: refuse(refusedInvalid, "%v", err)})}
	}
	if older := s.olderThan(raw[0]); older != "" {
		return answer{answerDone, encode(nil, outcome{Refuse: refuse(refusedConflict,
			"node %s runs an older release, which cannot read this change: upgrade it first", older)})}
	}
	f := inst.raft.Apply(raw, wait)
	if err := f.Error(); err != nil {
		return afterRaft(err)
	}
	switch o := f.Response().(type) {
	case outcome:
		return answer{answerDone, encode(nil, o)}
	case error:
		return answerOf(answerUncertain, o)
	}
	return answerOf(answerUncertain, errors.New("the state machine gave no outcome"))
}

// afterRaft says whether an error leaves the outcome unknown.
func afterRaft(err error) answer {
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		return answerOf(answerFailed, err)
	}
	return answerOf(answerUncertain, err)
}

func transfer(inst *raftInstance, to string) answer {
	if _, leader := inst.raft.LeaderWithID(); to != "" && to == string(leader) {
		return answer{status: answerDone}
	}
	var f raft.Future
	if to == "" {
		f = inst.raft.LeadershipTransfer()
	} else {
		server, ok := inst.find(raft.ServerID(to))
		if !ok || server.Suffrage != raft.Voter {
			return answerOf(answerRefused, fmt.Errorf("%s is no voter of this group", to))
		}
		f = inst.raft.LeadershipTransferToServer(server.ID, server.Address)
	}
	return answerOf(answerFailed, f.Error())
}

func (s *Store) otherVoter(inst *raftInstance) bool {
	return slices.ContainsFunc(inst.servers(), func(server raft.Server) bool {
		return server.Suffrage == raft.Voter && string(server.ID) != s.id
	})
}

func (s *Store) handOn(ctx context.Context, inst *raftInstance) {
	if !s.isLeader(inst) || !s.otherVoter(inst) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Call)
	defer cancel()
	if a := s.execute(ctx, askTransfer, []byte("{}")); a.status != answerDone {
		s.log.Warn().Str("err", string(a.body)).Msg("leadership was not transferred")
	}
}

func (s *Store) serve(c *conn) {
	for {
		c.limit(time.Now().Add(idleTimeout))
		what, body, err := readFrame(c, maxRequestBytes)
		if err != nil {
			return
		}
		a := s.answer(requestKind(what), body)
		c.limit(time.Now().Add(idleTimeout))
		if err := writeFrame(c, byte(a.status), a.body); err != nil {
			return
		}
	}
}

func (s *Store) answer(kind requestKind, body []byte) answer {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timers.Call)
	defer cancel()
	switch kind {
	case askApply, askRead, askTransfer:
		d := &decoder{b: body}
		budget := time.Duration(d.uint(math.MaxInt32)) * time.Millisecond
		if d.err != nil {
			return answerOf(answerRefused, d.err)
		}
		ctx, cancel := context.WithTimeout(ctx, budget)
		defer cancel()
		return s.execute(ctx, kind, d.b)
	case askInfo:
		return jsonAnswer(answerDone, s.info())
	case askJoin:
		return handle(body, func(req joinRequest) answer { return answerOf(answerRefused, s.join(req)) })
	case askState:
		return handle(body, func(req stateRequest) answer { return s.stateAfter(ctx, req) })
	}
	return answerOf(answerRefused, fmt.Errorf("request of the unknown kind %d", kind))
}

func jsonAnswer(status answerStatus, v any) answer {
	body, err := json.Marshal(v)
	if err != nil {
		return answerOf(answerFailed, err)
	}
	return answer{status, body}
}

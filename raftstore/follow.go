package raftstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// stateRequest asks a member of a group for a newer state than the one the asking node has.
type stateRequest struct {
	Group   groupID `json:"group"`
	Version uint64  `json:"version"` // of the state that the asking node has
}

// stateTimeout bounds the transfer of a state, beside the time that the answering node waits for one.
const stateTimeout = 5 * time.Second

// follow keeps State up to date in memory while this node's disk takes no writes and no raft runs
// here. It asks the members that are alive, one after the other, for a newer state. A member that
// knows a leader holds its answer back until there is one, for Timers.Poll at most; so a change
// arrives as soon as it is committed, and a member that was cut off from the leader is left after
// that time.
func (s *Store) follow(ctx context.Context) {
	if s.port == nil {
		return
	}
	var q search
	for ctx.Err() == nil {
		member := s.anybody(&q)
		if member.Addr != "" && s.followOnce(ctx, member.Addr) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.cfg.Timers.Poll):
		}
	}
}

// followOnce asks one member for a newer state. It reports whether the member answered as it should.
func (s *Store) followOnce(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Poll+stateTimeout)
	defer cancel()
	known, began := s.State().Version, time.Now()
	body, err := json.Marshal(stateRequest{s.group(), known})
	if err != nil {
		return false
	}
	a, _, err := s.caller.call(ctx, addr, askState, body)
	if err != nil || a.status != answerDone {
		return false
	}
	if len(a.body) == 0 {
		return time.Since(began) >= s.cfg.Timers.Poll
	}
	m, err := restoreMachine(a.body)
	if err != nil {
		s.log.Warn().Err(err).Str("addr", addr).Msg("the state that another node sent cannot be read")
		return false
	}
	s.publish(m.state())
	s.compare()
	return m.version > known
}

// stateAfter answers a node that follows in memory.
func (s *Store) stateAfter(ctx context.Context, req stateRequest) answer {
	l := s.current()
	switch {
	case l == nil:
		return failedAnswer(answerFailed, errLinkClosed)
	case req.Group != s.group():
		return failedAnswer(answerRefused, fmt.Errorf("this node is not in group %s", req.Group))
	case s.leader(l).ID != "":
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Poll)
		defer cancel()
		_, _ = s.await(ctx, req.Version+1) // at the end of the time there is none
	}
	if s.State().Version <= req.Version {
		return answer{status: answerDone}
	}
	snapshot, err := l.fsm.encoded()
	if err != nil {
		return failedAnswer(answerFailed, err)
	}
	return answer{answerDone, snapshot}
}

package raftstore

import (
	"context"
	"fmt"
	"time"
)

type stateRequest struct {
	Group   groupID `json:"group"`
	Version uint64  `json:"version"` // of the asking node
}

// stateTimeout bounds the transfer.
const stateTimeout = 5 * time.Second

// follow keeps State current while the disk takes no writes. A live member that knows a leader
// answers when it has a newer state, or after Timers.Poll.
func (s *Store) follow(ctx context.Context) {
	for ctx.Err() == nil {
		member := s.randomPeer()
		if member.Addr == "" || !s.followOnce(ctx, member.Addr) {
			s.pause(ctx, s.cfg.Timers.Poll)
		}
	}
}

func (s *Store) followOnce(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Poll+stateTimeout)
	defer cancel()
	known, began := s.State().Version, time.Now()
	body, err := s.caller.ask(ctx, addr, askState, stateRequest{s.group(), known})
	if err != nil {
		return false
	}
	if len(body) == 0 {
		return time.Since(began) >= s.cfg.Timers.Poll
	}
	m, err := restoreMachine(body)
	if err != nil {
		s.log.Warn().Err(err).Str("addr", addr).Msg("the state that another node sent cannot be read")
		return false
	}
	s.publish(m.state())
	_ = s.fits(s.State().Constants)
	return m.version > known
}

func (s *Store) stateAfter(ctx context.Context, req stateRequest) answer {
	inst := s.current()
	switch {
	case inst == nil:
		return answerOf(answerFailed, errLinkClosed)
	case req.Group != s.group():
		return answerOf(answerRefused, fmt.Errorf("this node is not in group %s", req.Group))
	case s.leader(inst).ID != "":
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timers.Poll)
		defer cancel()
		_, _ = s.await(ctx, req.Version+1) // an error means no newer state
	}
	if s.State().Version <= req.Version {
		return answer{status: answerDone}
	}
	snapshot, err := inst.fsm.encoded()
	if err != nil {
		return answerOf(answerFailed, err)
	}
	return answer{answerDone, snapshot}
}

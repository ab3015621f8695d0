package raftstore

import (
	"context"
	"sync"
	"time"
)

const askTimeout = 500 * time.Millisecond

type info struct {
	ID        string    `json:"id"`
	Addr      string    `json:"addr"`
	Group     groupID   `json:"group"`
	Founding  []Server  `json:"founding,omitempty"` // Group began with these, if this node founded it
	Given     []groupID `json:"given,omitempty"`    // Group was recovered from these
	Size      int       `json:"size,omitempty"`     // servers of the recovery
	Proven    bool      `json:"proven"`             // in a group, and in service
	Founders  []string  `json:"founders,omitempty"` // Config.Founders, sorted
	Server    bool      `json:"server"`
	Constants Constants `json:"constants"`
	LastIndex uint64    `json:"last_index"`
	Leader    string    `json:"leader,omitempty"`
	Failed    string    `json:"failed,omitempty"`
}

func (s *Store) info() info {
	inst := s.current()
	s.mu.Lock()
	i := info{
		ID: s.id, Addr: s.addr, Group: s.ident.Group, Founding: s.ident.Founding,
		Given: s.ident.Given, Size: s.ident.Size, Proven: s.ident.Group != groupID{} && !s.ident.Unproven,
		Founders: s.cfg.Founders, Server: s.cfg.Server, Constants: s.cfg.Constants, Failed: s.problem.disk,
	}
	if i.Failed == "" {
		i.Failed = s.problem.halted
	}
	s.mu.Unlock()
	if inst != nil {
		i.LastIndex = inst.raft.LastIndex()
		i.Leader = s.leader(inst).ID
		if err := inst.failure(); err != nil && i.Failed == "" {
			i.Failed = "disk failed: " + err.Error()
		}
	}
	return i
}

func (s *Store) askInfo(ctx context.Context, addr string) (info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var i info
	err := s.caller.ask(ctx, addr, askInfo, nil, &i)
	return i, err
}

type answered struct {
	Peer
	info info
	err  error
}

func (s *Store) askAll(ctx context.Context, peers []Peer) []answered {
	list := make([]answered, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			list[i].Peer = p
			list[i].info, list[i].err = s.askInfo(ctx, p.Addr)
		})
	}
	wg.Wait()
	return list
}

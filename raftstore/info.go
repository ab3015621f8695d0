package raftstore

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"
)

const askTimeout = 500 * time.Millisecond

type info struct {
	identity
	Addr      string    `json:"addr"`
	Founders  []string  `json:"founders,omitempty"` // Config.Founders, sorted
	Server    bool      `json:"server"`
	Constants Constants `json:"constants"`
	LastIndex uint64    `json:"last_index"`
	Leader    string    `json:"leader,omitempty"`
	Failed    string    `json:"failed,omitempty"`
	Format    uint8     `json:"format,omitempty"` // the newest that the program knows; 0: silentFormat
}

func (s *Store) info() info {
	inst := s.current()
	s.mu.Lock()
	i := info{
		identity: s.ident, Addr: s.addr, Founders: s.cfg.Founders, Server: s.cfg.Server, Format: s.cfg.knows,
		Constants: s.cfg.Constants, Failed: cmp.Or(s.problem.disk, s.problem.halted),
	}
	s.mu.Unlock()
	if inst != nil {
		i.LastIndex = inst.raft.LastIndex()
		i.Leader = s.leader(inst).ID
		if err := inst.disk.failure(); err != nil && i.Failed == "" {
			i.Failed = "disk failed: " + err.Error()
		}
	}
	return i
}

func (s *Store) askInfo(ctx context.Context, addr string) (info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var i info
	body, err := s.caller.ask(ctx, addr, askInfo, nil)
	if err == nil {
		err = in("answer of "+addr, json.Unmarshal(body, &i))
	}
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

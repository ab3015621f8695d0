package raftstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const nearIndex = 250

const maxAdded = 16

type serverHealth struct {
	healthy bool
	since   time.Time // of healthy
	heard   time.Time // last answer, or start of this leadership
	index   uint64
	vote    bool
	left    bool  // according to gossip
	format  uint8 // the newest that its program knows; 0: not known
	name    string
}

func (s *Store) lead(ctx context.Context, inst *raftInstance) {
	if inst.fsm.stopped() != nil {
		// The machine has stopped, so this node must not lead.
		if a := transfer(inst, ""); a.status != answerDone {
			s.log.Warn().Str("err", string(a.body)).Msg("leadership was not transferred")
		}
		return
	}
	if s.port == nil {
		s.commitConstants(ctx)
		return
	}
	term := inst.raft.CurrentTerm()
	peers := s.peers()
	servers := inst.servers()
	answers := s.askAll(ctx, s.toAsk(peers, servers))
	if ctx.Err() != nil || inst.raft.CurrentTerm() != term {
		return
	}
	why := yields(s.identity(), answers)
	if s.note(&s.bar, why); why != "" {
		s.foreign(why)
		return
	}
	s.commitConstants(ctx)
	answers = s.withoutClones(servers, answers)
	s.examine(inst, servers, answers)
	if s.moveServers(inst, servers, answers) {
		return
	}
	s.takeIn(ctx, inst, servers, answers)
	s.changeVoters(inst)
}

func (s *Store) commitConstants(ctx context.Context) {
	if s.cfg.Constants == (Constants{}) || s.State().Constants != (Constants{}) {
		return
	}
	if _, err := s.Apply(ctx, SetConstants{s.cfg.Constants}); err != nil {
		s.log.Warn().Err(err).Msg("cannot commit the settings that all nodes must share")
	}
}

func (s *Store) toAsk(peers []Peer, servers []raft.Server) []Peer {
	var list []Peer
	known := map[string]bool{s.id: true}
	addrs := map[string]bool{s.addr: true}
	for _, alive := range []bool{true, false} { // a live peer may have a dead one's address
		for _, p := range peers {
			if p.Alive == alive && !addrs[p.Addr] {
				known[p.ID], addrs[p.Addr] = true, true
				list = append(list, p)
			}
		}
	}
	for _, server := range servers {
		id, addr := string(server.ID), string(server.Address)
		if !known[id] && !addrs[addr] {
			list = append(list, Peer{ID: id, Addr: addr})
		}
	}
	return list
}

func (s *Store) examine(inst *raftInstance, servers []raft.Server, answers []answered) {
	byID := make(map[string]answered, len(answers))
	for _, a := range answers {
		if a.err == nil {
			byID[a.info.ID] = a
		} else if _, found := byID[a.ID]; !found && a.ID != "" {
			byID[a.ID] = a
		}
	}
	now, last, group := time.Now(), inst.raft.LastIndex(), s.group()
	s.mu.Lock()
	defer s.mu.Unlock()
	if term := inst.raft.CurrentTerm(); term != s.healthTerm {
		clear(s.health)
		s.healthTerm = term
	}
	health := make(map[string]*serverHealth, len(servers))
	for _, server := range servers {
		id := string(server.ID)
		h := s.health[id]
		a, answered := byID[id]
		if h == nil {
			h = &serverHealth{since: now, heard: now}
			// The wait for a dead voter survives a change of leader.
			if answered && !a.Alive && !a.Since.IsZero() && a.Since.Before(now) {
				h.heard = a.Since
			}
		}
		health[id] = h
		healthy := id == s.id
		if answered {
			h.left = a.Left
		}
		if answered && a.err == nil {
			// A failed disk counts as silence, so that the vote moves after Timers.Dead.
			if a.info.Failed == "" {
				h.heard = now
			}
			h.index, h.vote, h.name = a.info.LastIndex, a.info.Server, cmp.Or(a.Name, a.Addr)
			h.format = cmp.Or(a.info.Format, silentFormat)
			healthy = a.info.Group == group && a.info.Failed == "" && a.info.LastIndex+nearIndex >= last
			// Gossip is wrong: the node answers.
			h.left = false
		}
		if id == s.id {
			h.heard, h.index, h.vote = now, last, s.cfg.Server
		}
		if healthy != h.healthy {
			h.healthy, h.since = healthy, now
		}
	}
	s.health = health
}

// olderThan names a healthy server whose program does not know a format; "": none.
func (s *Store) olderThan(format uint8) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := ""
	for id, h := range s.health {
		if id != s.id && h.healthy && h.format != 0 && h.format < format {
			oldest = max(oldest, h.name)
		}
	}
	return oldest
}

// moveServers corrects one server's address, or removes a server whose address another node has.
func (s *Store) moveServers(inst *raftInstance, servers []raft.Server, answers []answered) bool {
	for _, a := range answers {
		if a.err != nil || a.info.Group != s.group() && a.info.Group != (groupID{}) {
			continue
		}
		for _, server := range servers {
			same, there := string(server.ID) == a.info.ID, string(server.Address) == a.Addr
			switch {
			case same && !there:
				s.log.Info().Str("peer", a.info.ID).Str("addr", a.Addr).Msg("a node of the Raft group has a new address")
				addr := raft.ServerAddress(a.Addr)
				if server.Suffrage == raft.Voter {
					return s.changed(inst.raft.AddVoter(server.ID, addr, 0, s.cfg.Timers.Call))
				}
				return s.changed(inst.raft.AddNonvoter(server.ID, addr, 0, s.cfg.Timers.Call))
			case !same && there && string(server.ID) != s.id && s.canLose(servers, string(server.ID)):
				s.log.Info().Str("peer", string(server.ID)).Str("by", a.info.ID).Msg("a node of the Raft group was replaced at its address")
				return s.changed(inst.raft.RemoveServer(server.ID, 0, s.cfg.Timers.Call))
			}
		}
	}
	return false
}

func (s *Store) canLose(servers []raft.Server, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	voters, healthy := 0, 0
	for _, server := range servers {
		if server.Suffrage != raft.Voter {
			if string(server.ID) == id {
				return true
			}
			continue
		}
		voters++
		if h := s.health[string(server.ID)]; string(server.ID) != id && h != nil && h.healthy {
			healthy++
		}
	}
	return healthy > voters/2
}

func (s *Store) changed(f raft.IndexFuture) bool {
	if err := f.Error(); err != nil {
		s.log.Warn().Err(err).Msg("cannot change the members of the Raft group")
		return false
	}
	return true
}

func (s *Store) takeIn(ctx context.Context, inst *raftInstance, servers []raft.Server, answers []answered) {
	maps.DeleteFunc(s.unwilling, func(addr, _ string) bool {
		return !slices.ContainsFunc(answers, func(a answered) bool { return a.Addr == addr })
	})
	added := 0
	var foreign []string
	inUse := sync.OnceValues(inst.formatInUse)
	for _, a := range answers {
		// A founder that stopped early is known and has no group.
		known := slices.ContainsFunc(servers, func(server raft.Server) bool { return string(server.ID) == a.info.ID })
		switch {
		case a.err != nil || known && a.info.Group != groupID{} || a.Left || !a.Alive || a.info.Failed != "" || added == maxAdded:
			continue
		case a.info.Group != groupID{} && a.info.Group != s.group():
			foreign = append(foreign, fmt.Sprintf("%s (group %s)", a.Addr, a.info.Group))
			continue
		}
		format, err := inUse()
		if err != nil {
			s.log.Warn().Err(err).Msg("no node is added to the Raft group: the format in use cannot be read")
			return
		}
		own := s.identity()
		req := joinRequest{Group: own.Group, Leader: s.id, Format: int(format), Constants: s.State().Constants, Given: own.Given, Size: own.Size}
		askCtx, cancel := context.WithTimeout(ctx, 2*askTimeout+s.cfg.Timers.Write)
		_, err = s.caller.ask(askCtx, a.Addr, askJoin, req)
		cancel()
		if err != nil {
			if s.unwilling[a.Addr] != err.Error() {
				s.unwilling[a.Addr] = err.Error()
				s.log.Warn().Err(err).Str("peer", a.info.ID).Msg("node not added to the Raft group")
			}
			continue
		}
		delete(s.unwilling, a.Addr)
		s.log.Info().Str("peer", a.info.ID).Str("addr", a.Addr).Msg("node added to the Raft group")
		if !known && !s.changed(inst.raft.AddNonvoter(raft.ServerID(a.info.ID), raft.ServerAddress(a.Addr), 0, s.cfg.Timers.Call)) {
			return
		}
		added++
	}
	text := ""
	if len(foreign) > 0 {
		slices.Sort(foreign)
		text = "nodes of another group are in this fleet: " + strings.Join(foreign, ", ") +
			": " + giveOneUp
	}
	s.foreign(text)
}

func (s *Store) foreign(text string) {
	if s.note(&s.problem.group, text) {
		s.log.Error().Msg(text)
	}
}

const maxAsked = 3

// lookAbroad asks random nodes for another group, because no message announces a recovery.
func (s *Store) lookAbroad(ctx context.Context) {
	peers := s.livePeers()
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	own := s.identity()
	remedy := giveUpSelf
	if s.cfg.Dir == "" {
		remedy = "restart this node"
	}
	for _, a := range s.askAll(ctx, peers[:min(len(peers), maxAsked)]) {
		switch {
		case a.err != nil || a.info.Group == groupID{} || a.info.Group == own.Group:
			continue
		case a.info.proven() && own.relationTo(a.info) == heir:
			s.foreign(fmt.Sprintf("this node's group (%s) was given up and recovered as %s: %s is in it; %s", own.Group, a.info.Group, a.where(), remedy))
		case a.info.Leader != "":
			s.foreign(fmt.Sprintf("this node's group (%s) has no leader, and %s is in another group that has one (%s); if it was given up: %s", own.Group, a.where(), a.info.Group, remedy))
		default:
			continue
		}
		return
	}
}

func (s *Store) changeVoters(inst *raftInstance) {
	var list []standing
	s.mu.Lock()
	now := time.Now()
	for _, server := range inst.servers() {
		h := s.health[string(server.ID)]
		if h == nil {
			continue // just added
		}
		silent := now.Sub(h.heard)
		list = append(list, standing{
			id: string(server.ID), voter: server.Suffrage == raft.Voter, leader: string(server.ID) == s.id,
			healthy: h.healthy, stable: h.healthy && h.vote && now.Sub(h.since) >= s.cfg.Timers.Stable,
			dead: h.left || silent >= s.cfg.Timers.Dead, gone: h.left || silent >= s.cfg.Timers.Forget,
		})
	}
	s.mu.Unlock()
	c, id := nextChange(list, s.cfg.Voters)
	if c == changeNothing {
		return
	}
	s.log.Info().Str("peer", id).Stringer("change", c).Msg("members of the Raft group change")
	server := raft.ServerID(id)
	switch c {
	case changePromote:
		if to, ok := inst.find(server); ok {
			s.changed(inst.raft.AddVoter(server, to.Address, 0, s.cfg.Timers.Call))
		}
	case changeDemote:
		s.changed(inst.raft.DemoteVoter(server, 0, s.cfg.Timers.Call))
	case changeRemove:
		s.changed(inst.raft.RemoveServer(server, 0, s.cfg.Timers.Call))
	}
}

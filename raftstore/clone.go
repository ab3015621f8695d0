package raftstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

const (
	cloned      = "its data directory was copied"
	cloneRemedy = "stop the copy, empty its data directory and start it with join"
	// Gossip may need this long to notice that a node died and moved.
	cloneAfter = 5 * time.Second
	// cloneShown is how long a sighting is reported and not logged again.
	cloneShown = time.Minute
)

// cloneSighting is a node with a copy of another's data, which could vote twice in a term.
type cloneSighting struct {
	id, addr, original string
	first, last        time.Time
	logged             time.Time
}

func (c cloneSighting) text(now time.Time) string {
	if c.last.Sub(c.first) < cloneAfter || now.Sub(c.last) > cloneShown {
		return ""
	}
	return fmt.Sprintf("the node at %s has the raft id %s of %s, which is alive: %s; %s", c.addr, c.id, c.original, cloned, cloneRemedy)
}

// originalOf returns the live node with a hello's raft id at another address. A moved node waits
// until gossip knows its former process as dead.
func (s *Store) originalOf(h hello) (Peer, bool) {
	if h.ID == s.id {
		return Peer{ID: s.id, Name: "this node", Addr: s.addr}, true
	}
	if inst := s.current(); inst != nil {
		if addr, ok := inst.find(raft.ServerID(h.ID)); ok && string(addr) == h.Addr {
			return Peer{}, false
		}
	}
	for _, p := range s.peers() {
		if p.ID == h.ID && p.Alive && p.Addr != h.Addr {
			return p, true
		}
	}
	return Peer{}, false
}

func (s *Store) noteClone(h hello, original Peer) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.problem.clone
	if c.id != h.ID || c.addr != h.Addr || now.Sub(c.last) > cloneShown {
		*c = cloneSighting{id: h.ID, addr: h.Addr, first: now, logged: c.logged}
	}
	c.original, c.last = original.where(), now
	if text := c.text(now); text != "" && now.Sub(c.logged) > cloneShown {
		c.logged = now
		s.log.Warn().Msg(text)
	}
}

// withoutClones drops answers of copies whose original answers, too.
func (s *Store) withoutClones(servers []raft.Server, answers []answered) []answered {
	isClone := func(a answered) bool {
		at := slices.IndexFunc(servers, func(server raft.Server) bool { return string(server.ID) == a.info.ID })
		if a.err != nil || at < 0 || string(servers[at].Address) == a.Addr {
			return false
		}
		for _, other := range answers {
			if other.err == nil && other.info.ID == a.info.ID && other.Addr != a.Addr {
				s.noteClone(hello{ID: a.info.ID, Addr: a.Addr}, other.Peer)
				return true
			}
		}
		return false
	}
	return slices.DeleteFunc(slices.Clone(answers), isClone)
}

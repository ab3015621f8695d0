package raftstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// censusTimeout is the time after which a silent voter is missing, and the least between counts.
const censusTimeout = 500 * time.Millisecond

// census counts missing voters for the error of a call without a leader.
type census struct {
	mu      sync.Mutex
	started time.Time
	running bool
	voters  int
	missing []string
	counted bool
}

func (s *Store) count(c *census) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.port == nil || c.running || time.Since(c.started) < censusTimeout {
		return
	}
	c.started, c.running = time.Now(), true
	s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, censusTimeout)
		defer cancel()
		voters, missing := s.roll(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running, c.counted = false, true
		c.voters, c.missing = voters, missing
	})
}

func (s *Store) roll(ctx context.Context) (voters int, missing []string) {
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	group := s.group()
	for _, v := range s.voters() {
		voters++
		if v.ID == s.id {
			continue
		}
		wg.Go(func() {
			info, err := s.askInfo(ctx, v.Addr)
			why := ""
			switch {
			case err != nil:
			case info.ID != v.ID && v.ID != "":
				why = ", another node is there"
			case info.Group != groupID{} && info.Group != group && group != groupID{}:
				why = ", in another group"
			case info.Failed != "":
				why = ", " + info.Failed
			default:
				return
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, fmt.Sprintf("%s (%s%s)", cmp.Or(v.Name, v.ID), v.Addr, why))
		})
	}
	wg.Wait()
	slices.Sort(missing)
	return voters, missing
}

// voters uses all peers that may vote if there is no configuration.
func (s *Store) voters() (list []Peer) {
	peers, servers := s.peers(), s.current().servers()
	names := make(map[string]string)
	for _, p := range peers {
		names[p.ID] = p.Name
		if len(servers) == 0 && p.Server && !p.Left {
			list = append(list, p)
		}
	}
	for _, server := range servers {
		if id := string(server.ID); server.Suffrage == raft.Voter {
			list = append(list, Peer{ID: id, Name: names[id], Addr: string(server.Address)})
		}
	}
	return list
}

// missing says why there is no leader.
func (s *Store) missing(c *census) string {
	s.mu.Lock()
	waiting, disk := s.waiting, s.problem.disk
	s.mu.Unlock()
	inst := s.current()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case disk != "":
		return "this node's " + disk
	case len(inst.servers()) == 0 && waiting != "" && len(c.missing) > 0:
		return fmt.Sprintf("this node is in no group: %s; unreachable: %s", waiting, strings.Join(c.missing, ", "))
	case len(inst.servers()) == 0 && waiting != "":
		return "this node is in no group: " + waiting
	case !c.counted:
		return ""
	case len(c.missing) > (c.voters-1)/2:
		return fmt.Sprintf("no quorum: %d of %d voters unreachable: %s",
			len(c.missing), c.voters, strings.Join(c.missing, ", "))
	case len(c.missing) > 0:
		return "an election is under way; unreachable: " + strings.Join(c.missing, ", ")
	}
	return "an election is under way"
}

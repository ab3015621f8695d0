package raftstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// censusTimeout is how long a voter has to answer before it counts as missing,
// and about how often a call that waits for a leader asks them.
const censusTimeout = 500 * time.Millisecond

// census asks who is there, beside a call that finds no leader, so that its
// error can say who is not.
type census struct {
	mu      sync.Mutex
	started time.Time
	running bool
	voters  int
	missing []string // of the last count
	counted bool
}

// count starts a count, unless one runs or was done just now.
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

// roll asks every voter whether it takes part.
func (s *Store) roll(ctx context.Context) (voters int, missing []string) {
	names := make(map[string]string)
	for _, p := range s.peers() {
		names[p.ID] = p.Name
	}
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for _, server := range s.current().servers() {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		id, addr := string(server.ID), string(server.Address)
		if id == s.id {
			continue
		}
		wg.Go(func() {
			info, err := s.askInfo(ctx, addr)
			why := ""
			switch {
			case err != nil:
			case info.ID != id:
				why = ", another node is there"
			case info.Member && info.Group != s.group():
				why = ", in another group"
			case info.Failed != "":
				why = ", " + info.Failed
			default:
				return
			}
			mu.Lock()
			defer mu.Unlock()
			name := names[id]
			if name == "" {
				name = id
			}
			missing = append(missing, fmt.Sprintf("%s (%s%s)", name, addr, why))
		})
	}
	wg.Wait()
	slices.Sort(missing)
	return voters, missing
}

// missing says why there is no leader, as far as it is known.
func (s *Store) missing(c *census) string {
	s.mu.Lock()
	waiting, disk := s.waiting, s.problem.disk
	s.mu.Unlock()
	l := s.current()
	switch {
	case disk != "":
		return "this node's " + disk
	case len(l.servers()) == 0 && waiting != "":
		return "this node is in no group: " + waiting
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
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

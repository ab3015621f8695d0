package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

// startStore joins the Raft group without waiting: the node routes by its own list until a state
// arrives.
func (n *Node) startStore(ctx context.Context, owner *cleanups) error {
	c := &n.cfg
	cfg := raftstore.Config{
		Dir: c.DataDir, Founders: c.Founders, Join: c.Joins(), Voters: c.Voters, Server: c.MayVote(), Peers: n.raftPeers, Met: n.met.Load,
		Constants: raftstore.Constants{KeyID: n.hasher.KeyID(), BlockBytes: uint32(n.hasher.BlockBytes()), Cluster: c.Cluster},
		Timers:    n.raftTimers, Log: n.log.With().Str("component", "raft").Logger(),
	}
	if !c.InFleet() && c.Secret == "" && c.SecretFile == "" {
		cfg.Constants = raftstore.Constants{} // a random secret must not bind the data
	}
	if c.InFleet() {
		streams, err := n.openPort(ctx)
		if err != nil {
			return err
		}
		cfg.Streams = streams
	}
	s, err := raftstore.Open(cfg)
	if errors.Is(err, raftstore.ErrBarred) {
		return fmt.Errorf("%w: data_dir: %w", ErrRefused, err)
	}
	if err != nil && c.DataDir != "" {
		return fmt.Errorf("data_dir: %w (the node makes it, must be able to write there, and must be the only one to use it)", err)
	}
	if err != nil {
		return err
	}
	owner.push("raft", s.Stop)
	n.store.Store(s)
	if n.mesh != nil {
		n.mesh.Members().Describe(func(self *member.Info) {
			self.RaftID, self.RaftVoter = s.ID(), c.MayVote()
		})
		n.mesh.Members().SetGroup(s.Origin())
	}
	if n.knowledge != nil {
		n.knowledge.poke = s.Poke
	}
	if s.State().Version > 0 {
		n.adopt(s.State()) // before the node serves
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	n.run(owner, "agreement", func(ctx context.Context) { n.follow(ctx, s) }, func(ctx context.Context) { n.proposeOwn(ctx, s) })
	return nil
}

// handOnFirst makes a stop transfer leadership while peers are still reachable.
func (n *Node) handOnFirst() {
	s := n.store.Load()
	n.single.push("leadership", func(ctx context.Context) error {
		ctx, cancel := timeToHandOn(ctx)
		defer cancel()
		return s.Stop(ctx)
	})
}

const handOnTime = time.Second

// timeToHandOn grants handOnTime, ample for a transfer of milliseconds, even to an expired stop:
// peers would otherwise wait for an election.
func timeToHandOn(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), handOnTime)
}

// openPort binds the port of gossip and Raft and returns Raft's streams; gossip starts later.
func (n *Node) openPort(ctx context.Context) (*member.Streams, error) {
	cfg, err := n.gossipConfig()
	if err != nil {
		return nil, err
	}
	if n.mesh, err = gossip.New(cfg); err != nil {
		return nil, err
	}
	list := n.mesh.Members()
	streams := list.Streams(raftstore.ALPN)
	n.single.push("fleet port", list.Stop)
	return streams, list.Listen(ctx)
}

func (n *Node) raftPeers() (peers []raftstore.Peer) {
	if n.mesh == nil {
		return nil
	}
	for _, m := range n.mesh.Members().Members() {
		if m.RaftID == "" {
			continue
		}
		peers = append(peers, raftstore.Peer{
			ID: m.RaftID, Name: m.Name, Addr: m.Addr, Server: m.RaftVoter,
			Alive: m.State == member.StateAlive, Left: m.State == member.StateLeft, Since: m.Since,
		})
	}
	return peers
}

func (n *Node) follow(ctx context.Context, s *raftstore.Store) {
	for {
		changed := s.Changed()
		n.adopt(s.State())
		if n.mesh != nil {
			n.mesh.Members().SetGroup(s.Origin()) // it is in the group of this state
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// adopt routes by a state. A node with configured backends ignores one without backends until it
// has proposed its own or, if the fleet refuses these, until a state with others has come.
func (n *Node) adopt(s *raftstore.State) {
	unsaid := !n.proposed.Load() && (n.backends.Roster().Version == 0 || !n.refused.Load())
	if s.Version == 0 || len(s.Backends) == 0 && len(n.cfg.Backends) > 0 && unsaid {
		return
	}
	if err := n.backends.Adopt(s); err != nil {
		n.log.Error().Str("component", "agreement").Err(err).Uint64("version", s.Version).Msg("cannot route by the agreed state: the last one stays in force")
	}
	n.hot.Adopt(s, time.Now())
}

// proposeRetry is the pause after a failed proposal; a newer state ends it early.
const proposeRetry = time.Second

// proposeOwn proposes missing configured backends once: later removals are deliberate.
func (n *Node) proposeOwn(ctx context.Context, s *raftstore.Store) {
	if n.proposed.Load() || n.refused.Load() {
		return // before a replacement that failed
	}
	defer func() {
		if n.proposed.Load() || n.refused.Load() {
			close(n.said)
		}
	}()
	log := n.log.With().Str("component", "agreement").Logger()
	for {
		changed := s.Changed()
		missing := missingBackends(s.State(), n.cfg.Backends)
		if len(missing) == 0 {
			break
		}
		_, err := s.Apply(ctx, raftstore.AddBackends{Backends: missing})
		switch {
		case err == nil:
			continue
		case errors.Is(err, raftstore.ErrInvalid), errors.Is(err, raftstore.ErrTooMany):
			log.Error().Err(err).Msg("cannot add the configured backends to the fleet")
			n.refused.Store(true)
			n.adopt(s.State())
			return
		}
		select {
		case <-changed:
		case <-time.After(proposeRetry):
		case <-ctx.Done():
			return
		}
	}
	for i := range n.cfg.Backends {
		own := &n.cfg.Backends[i]
		if _, ok := s.State().Backend(own.Name); !ok {
			log.Warn().Str("backend", own.Name).Str("url", own.URL).Msg("a configured backend is in the fleet under another name, or not at all")
		}
	}
	n.proposed.Store(true)
	n.adopt(s.State())
}

// missingBackends are those that s has neither by name nor by URL.
func missingBackends(s *raftstore.State, own []config.Backend) (specs []raftstore.Backend) {
	urls := make(map[string]bool, len(s.Backends))
	for i := range s.Backends {
		urls[s.Backends[i].URL] = true
	}
	for i := range own {
		b := &own[i]
		url, err := raftstore.NormalURL(b.URL)
		if _, ok := s.Backend(b.Name); ok || err != nil || urls[url] {
			continue
		}
		specs = append(specs, b.Spec())
	}
	return specs
}

// publish puts a roster, and its view unless nil, into force, under the directory's lock; see
// backends.Config.Publish.
func (n *Node) publish(old, r *backends.Roster, v *policy.View) {
	if r != old {
		n.setGenerations(old, r)
	}
	if v != nil {
		n.router.SetView(v)
		n.metrics.AddModels(v.Models())
		n.metrics.AddRules(rules.Labels(v.Rules))
		for i := range v.Backends {
			if b := &v.Backends[i]; b.KVTokens > 0 {
				n.tree.SetCapacity(b.ID, b.KVTokens*assumedBytesPerToken/n.cfg.BlockBytes)
			}
		}
	}
	n.health.Adopted(r)
	if r != old {
		n.metrics.AddBackends(r.Names())
	}
}

// setGenerations also drops all records of a name that meant another engine in the node's own list.
func (n *Node) setGenerations(old, r *backends.Roster) {
	at := now()
	for _, e := range r.List {
		if was := old.At(e.ID); was != nil && !was.Agreed && !config.SameURL(was.URL, e.URL) {
			n.router.Release(e.ID)
			n.forget(e.ID)
		}
		n.tree.SetGeneration(e.ID, e.KnownGeneration(), at)
	}
}

func (n *Node) release(b prefixtree.Backend) bool {
	if !n.router.Release(b) {
		return false
	}
	n.forget(b)
	return true
}

func (n *Node) forget(b prefixtree.Backend) {
	n.tree.Reset(b)
	if n.knowledge != nil {
		n.knowledge.shared.Forget(b)
	}
}

// awaitBackends waits up to WarmDeadline for a first backend; a node without a vote waits only for
// a live voter, which can send the list. It returns false if ctx ends.
func (n *Node) awaitBackends(ctx context.Context) bool {
	if !n.cfg.MayVote() && !slices.ContainsFunc(n.raftPeers(), func(p raftstore.Peer) bool { return p.Server && p.Alive }) {
		return true
	}
	n.ready.wait(because("no backends known yet"))
	deadline := time.After(n.cfg.WarmDeadline)
	for {
		changed := n.backends.Changed()
		if len(n.backends.Roster().List) > 0 {
			return true
		}
		select {
		case <-changed:
		case <-deadline:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

func (n *Node) agreement() (*raftstore.Store, error) {
	if s := n.store.Load(); s != nil {
		return s, nil
	}
	return nil, admin.ErrNotStarted
}

func (n *Node) Raft() (*admin.RaftStatus, error) {
	s, err := n.agreement()
	if err != nil {
		return nil, err
	}
	st := &admin.RaftStatus{Node: n.name, Status: s.Status()}
	for i := range st.Servers {
		if v := &st.Servers[i]; v.ID == st.ID {
			v.Name = cmp.Or(v.Name, n.name)
		}
	}
	return st, nil
}

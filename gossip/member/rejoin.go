package member

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	probers     = 16
	maxRevivals = 16 // failed members dialed per round
	// Of two nodes that believe each other dead, each learns it in one exchange and refutes in the
	// next.
	joinTries  = 3
	joinWait   = time.Second
	firstPause = 250 * time.Millisecond // doubles up to RejoinInterval: fleets start all at once
	healPause  = 500 * time.Millisecond
	minPause   = 100 * time.Millisecond
	maxHints   = 64
)

// Joined reports whether every join address was tried once.
func (l *List) Joined() bool {
	if len(l.seeds.entries) == 0 {
		return true
	}
	l.attempts.mu.Lock()
	defer l.attempts.mu.Unlock()
	return l.attempts.rounds > 0
}

// JoinErrors returns the last attempts, successes included.
func (l *List) JoinErrors() []SeedError {
	l.attempts.mu.Lock()
	defer l.attempts.mu.Unlock()
	return slices.Clone(l.attempts.last)
}

type attempts struct {
	mu     sync.Mutex
	rounds int
	last   []SeedError
	hints  map[string]Info // non-members that opened a stream, by address
	wake   chan struct{}

	// known has the process at each address; for the rejoin loop only.
	known map[string]Info
}

// A seed restarted without a join list finds its fleet by hints.
func (l *List) hint(who *Info) {
	if l.isMember(who) || l.isSelf(who) {
		return
	}
	a := &l.attempts
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.hints) >= maxHints {
		return
	}
	a.hints[who.Addr] = *who
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *attempts) takeHints() map[string]Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.hints
	a.hints = make(map[string]Info)
	return out
}

type target struct{ seed, addr string }

// memberlist neither heals partitions nor resolves names again.
func (l *List) rejoin(ctx context.Context) {
	pause := firstPause
	for !l.leaving.Load() {
		healed, vain := l.round(ctx)
		interval := l.cfg.RejoinInterval
		wait := interval/2 + rand.N(interval/2+1)
		switch {
		case healed:
			wait = min(wait, healPause)
		case vain && pause < interval:
			wait = min(wait, pause/2+rand.N(pause/2+1))
			pause *= 2
		}
		if !l.rest(ctx, wait) {
			return
		}
	}
}

func (l *List) rest(ctx context.Context, wait time.Duration) bool {
	if !sleep(ctx, minPause) {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait - minPause):
	case <-l.seeds.changed:
	case <-l.attempts.wake:
	}
	return true
}

// healed: a node joined and failed members remain. vain: there are seeds and no living peer.
func (l *List) round(ctx context.Context) (healed, vain bool) {
	targets, outcome := l.targets(ctx)
	results := make([]error, len(targets))
	found := make([]Info, len(targets))
	// One join at a time, since the first usually brings the other members.
	joining := make(chan struct{}, 1)
	each(len(targets), probers, func(i int) {
		addr := targets[i].addr
		if found[i], results[i] = l.probe(ctx, addr); results[i] != nil {
			return
		}
		joining <- struct{}{}
		defer func() { <-joining }()
		var joined bool
		joined, results[i] = l.join(ctx, found[i], addr)
		healed = healed || joined
	})
	if ctx.Err() != nil {
		return false, false
	}
	for i, t := range targets {
		if found[i].Name != "" {
			l.attempts.known[t.addr] = found[i]
		}
		outcome = append(outcome, SeedError{Seed: t.seed, Addr: t.addr, Err: results[i], At: time.Now()})
	}
	l.report(outcome)
	l.attempts.mu.Lock()
	l.attempts.rounds++
	l.attempts.last = outcome
	l.attempts.mu.Unlock()
	alive, failed := 0, 0
	for _, m := range l.Members() {
		switch m.State {
		case StateAlive:
			alive++
		case StateFailed:
			failed++
		}
	}
	return healed && failed > 0, alive == 0 && len(l.seeds.entries) > 0
}

// outcome has the entries that are not dialed.
func (l *List) targets(ctx context.Context) (targets []target, outcome []SeedError) {
	entries := l.seeds.entries
	addrs := make([][]string, len(entries))
	errs := make([]error, len(entries))
	each(len(entries), probers, func(i int) { addrs[i], errs[i] = l.seeds.resolve(ctx, entries[i]) })

	alive := make(map[string]bool)
	var failed []Info
	for _, m := range l.Members() {
		switch m.State {
		case StateAlive:
			alive[m.Addr] = true
		case StateFailed:
			failed = append(failed, m.Info)
		}
	}
	current := make(map[string]bool)
	for i, e := range entries {
		if errs[i] != nil {
			outcome = append(outcome, SeedError{Seed: e, Err: errs[i], At: time.Now()})
		}
		for _, a := range addrs[i] {
			if current[a] {
				continue
			}
			current[a] = true
			if l.present(a, alive) {
				outcome = append(outcome, SeedError{Seed: e, Addr: a, At: time.Now()})
				continue
			}
			targets = append(targets, target{e, a})
		}
	}
	for a, who := range l.attempts.takeHints() {
		if !current[a] && !l.isMember(&who) {
			current[a] = true
			targets = append(targets, target{"stream from " + who.Name, a})
		}
	}
	rand.Shuffle(len(failed), func(i, j int) { failed[i], failed[j] = failed[j], failed[i] })
	for _, m := range failed[:min(len(failed), maxRevivals)] {
		if !current[m.Addr] {
			current[m.Addr] = true
			targets = append(targets, target{"failed member " + m.Name, m.Addr})
		}
	}
	maps.DeleteFunc(l.attempts.known, func(addr string, _ Info) bool { return !current[addr] })
	return targets, outcome
}

func (l *List) present(addr string, alive map[string]bool) bool {
	if alive[addr] || addr == l.Self().Addr {
		return true
	}
	who, ok := l.attempts.known[addr]
	if !ok {
		return false
	}
	if l.isSelf(&who) {
		return true
	}
	m, ok := l.table.get(who.Name)
	return ok && m.State == StateAlive && m.Incarnation == who.Incarnation
}

func (l *List) isSelf(info *Info) bool {
	self := l.Self()
	return info.Name == self.Name && info.Incarnation == self.Incarnation && info.Addr == self.Addr
}

// joined is false if the node was a member before.
func (l *List) join(ctx context.Context, who Info, addr string) (joined bool, err error) {
	if l.isSelf(&who) || l.isMember(&who) {
		return false, nil
	}
	for range joinTries {
		if _, err = l.members.Join([]string{who.Name + "/" + addr}); err != nil {
			return false, fmt.Errorf("%s: %w", addr, err)
		}
		if l.await(ctx, &who) {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, fmt.Errorf("%s: %w", addr, errNotSeen)
}

var errNotSeen = errors.New("the node answers, but has not become a member yet")

func (l *List) await(ctx context.Context, who *Info) bool {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	for !l.isMember(who) {
		if !sleep(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

func (l *List) isMember(who *Info) bool {
	m, ok := l.table.get(who.Name)
	return ok && m.State == StateAlive && m.Incarnation >= who.Incarnation
}

func (l *List) report(outcome []SeedError) {
	before := make(map[string]string)
	for _, o := range l.JoinErrors() {
		before[o.Seed+" "+o.Addr] = fmt.Sprint(o.Err)
	}
	for _, o := range outcome {
		was, seen := before[o.Seed+" "+o.Addr]
		switch {
		case seen && was == fmt.Sprint(o.Err):
		case o.Err != nil:
			l.log.Warn().Str("seed", o.Seed).Str("addr", o.Addr).Err(o.Err).Msg("not joined")
		default:
			l.log.Info().Str("seed", o.Seed).Str("addr", o.Addr).Msg("joined")
		}
	}
}

// each runs at most limit calls at a time.
func each(n, limit int, do func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, limit)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wg.Wait()
}

// Package netswitch joins network namespaces by a user-space IPv4 switch whose links have faults
// per direction, decided by a seed.
package netswitch

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Everybody names all ports of links.
const Everybody = "*"

// Port is a place on the switch. A call of Device moves one packet.
type Port struct {
	Name   string
	Addr   netip.Addr // IPv4; packets from another address are lost
	Device io.ReadWriteCloser
	// Immune ports, of observers, have no faulty links.
	Immune bool
}

// Switch passes packets between its ports. Safe for concurrent use.
type Switch struct {
	seed uint64
	work sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	ports  []*port
	addrs  map[netip.Addr]*port
	lines  map[[2]*port]*line
	flows  flows
	closed bool
	errs   []error
}

type port struct {
	Port
	index int
	wake  chan struct{} // capacity 1: the queue has a new first packet
	done  chan struct{}
	queue []queued // guarded by Switch.mu
}

// New returns a switch; seed, order of ports, and packets decide its faults.
func New(seed uint64) *Switch {
	return &Switch{seed: seed, addrs: map[netip.Addr]*port{}, lines: map[[2]*port]*line{}, flows: flows{}}
}

// Attach adds and serves a port, whose device Close closes.
func (s *Switch) Attach(p Port) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosed
	case p.Name == "" || p.Name == Everybody || !p.Addr.Is4():
		return fmt.Errorf("netswitch: port %q at %v, want a name and an IPv4 address", p.Name, p.Addr)
	case s.addrs[p.Addr] != nil || slices.ContainsFunc(s.ports, func(o *port) bool { return o.Name == p.Name }):
		return fmt.Errorf("netswitch: port %s at %v is there already", p.Name, p.Addr)
	}
	pp := &port{Port: p, index: len(s.ports), wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.ports = append(s.ports, pp)
	s.addrs[p.Addr] = pp
	s.work.Go(func() { s.read(pp) })
	s.work.Go(func() { s.deliver(pp) })
	return nil
}

var errClosed = errors.New("netswitch: closed")

// named returns the ports of a name, or Everybody, without immune ones.
func (s *Switch) named(name string) ([]*port, error) {
	found := slices.DeleteFunc(slices.Clone(s.ports), func(p *port) bool { return p.Immune || name != Everybody && p.Name != name })
	if len(found) == 0 && name != Everybody {
		return nil, fmt.Errorf("netswitch: no port is called %q, or its links cannot be broken", name)
	}
	return found, nil
}

func (s *Switch) pairs(from, to string, f func(a, b *port)) error {
	left, err := s.named(from)
	if err != nil {
		return err
	}
	right, err := s.named(to)
	if err != nil {
		return err
	}
	for _, a := range left {
		for _, b := range right {
			if a != b {
				f(a, b)
			}
		}
	}
	return nil
}

// SetLink changes the link between two ports, or Everybody, in one direction.
func (s *Switch) SetLink(from, to string, l Link) error {
	if err := l.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pairs(from, to, func(a, b *port) { s.line(a, b).set(l) })
}

func (s *Switch) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.lines {
		n.set(Link{})
	}
}

// Reset resets all TCP connections between two ports, or Everybody; it returns their number.
func (s *Switch) Reset(a, b string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := map[[2]*port]bool{}
	if err := s.pairs(a, b, func(x, y *port) { hit[[2]*port{x, y}], hit[[2]*port{y, x}] = true, true }); err != nil {
		return 0, err
	}
	n, now := 0, time.Now()
	for key, c := range s.flows {
		x, y := s.addrs[key.a.Addr()], s.addrs[key.b.Addr()]
		if !hit[[2]*port{x, y}] || !c.doomed.IsZero() || c.closed[0] && c.closed[1] {
			continue
		}
		n++
		for side, packets := range c.doom(key, now) {
			for _, p := range packets {
				s.push([2]*port{x, y}[side], nil, now, p)
			}
		}
	}
	return n, nil
}

// Close closes all devices, waits for all goroutines, and returns which ports had failed.
// Idempotent.
func (s *Switch) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for _, p := range s.ports {
			close(p.done)
			if err := p.Device.Close(); err != nil {
				s.errs = append(s.errs, fmt.Errorf("netswitch: %s: %w", p.Name, err))
			}
		}
	}
	s.mu.Unlock()
	s.work.Wait()
	return errors.Join(s.errs...)
}

func (s *Switch) line(a, b *port) *line {
	n := s.lines[[2]*port{a, b}]
	if n == nil {
		n = &line{draw: rand.New(rand.NewPCG(s.seed, uint64(a.index)<<32|uint64(b.index)))}
		s.lines[[2]*port{a, b}] = n
	}
	return n
}

const maxPacket = 64 << 10

func (s *Switch) read(p *port) {
	buf := make([]byte, maxPacket)
	for {
		n, err := p.Device.Read(buf)
		if err != nil {
			s.failed(p, err)
			return
		}
		if pkt, ok := parse(buf[:n]); ok && pkt.src() == p.Addr {
			if to := s.pass(p, pkt); to != nil {
				s.write(to, pkt)
			}
		}
	}
}

func (s *Switch) pass(from *port, pkt packet) *port {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.addrs[pkt.dst()]
	if to == nil || to == from || s.closed {
		return nil
	}
	now := time.Now()
	seg, tcp := pkt.tcp()
	if tcp {
		pass, answer := s.flows.note(pkt, seg, now)
		if answer != nil {
			s.push(from, nil, now, answer)
		}
		if !pass {
			return nil
		}
	}
	n := s.line(from, to)
	arrivals, copies := n.fate(now, len(pkt))
	if tcp && n.link.NoTCP {
		return nil
	}
	if copies == 1 && n.pending == 0 && !arrivals[0].After(now) {
		return to // the short way: no packet of this link is ahead
	}
	for _, at := range arrivals[:copies] {
		s.push(to, n, at, slices.Clone(pkt))
	}
	return nil
}

func (s *Switch) push(to *port, n *line, at time.Time, pkt packet) {
	if n != nil {
		n.pending++
		n.flight += len(pkt)
	}
	i, _ := slices.BinarySearchFunc(to.queue, at, func(q queued, at time.Time) int {
		if q.at.After(at) {
			return 1
		}
		return -1
	})
	to.queue = slices.Insert(to.queue, i, queued{at, n, pkt})
	if i == 0 {
		select {
		case to.wake <- struct{}{}:
		default:
		}
	}
}

func (s *Switch) deliver(p *port) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		q, wait := s.due(p)
		if q.packet != nil {
			s.write(p, q.packet)
			s.landed(q)
			continue
		}
		timer.Reset(wait)
		select {
		case <-p.done:
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

func (s *Switch) due(p *port) (q queued, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.queue) == 0 || s.closed {
		return q, time.Hour
	}
	if wait = time.Until(p.queue[0].at); wait <= 0 {
		q, p.queue[0] = p.queue[0], queued{}
		p.queue = p.queue[1:]
	}
	return q, wait
}

// landed takes a packet off its link after the write, so that no other overtakes it.
func (s *Switch) landed(q queued) {
	if q.line == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q.line.pending--
	q.line.flight -= len(q.packet)
}

func (s *Switch) write(p *port, pkt packet) {
	if _, err := p.Device.Write(pkt); err != nil {
		s.failed(p, err)
	}
}

func (s *Switch) failed(p *port, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && len(s.errs) < 8 {
		s.errs = append(s.errs, fmt.Errorf("netswitch: %s: %w", p.Name, err))
	}
}

// queued is a packet in flight, sorted by time and arrival.
type queued struct {
	at     time.Time
	line   *line
	packet packet
}

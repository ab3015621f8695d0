package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"grapevine.example/gossip"
	"grapevine.example/gossip/member"
	"grapevine.example/node/admin"
	"grapevine.example/node/history"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/queue"
)

const (
	queueLines = 100 // that an answer lists
	peerLines  = 32  // of each router, that the others hear
)

// Queue tells what waits for an engine in the fleet, as far as routers report it.
func (n *Node) Queue() *admin.QueueStatus {
	out := n.ownQueue(queueLines)
	out.Routers = []admin.QueueRouter{{Node: n.name, QueueTotal: out.QueueTotal}}
	g := n.gossip.Load()
	if g == nil {
		return out
	}
	names := n.clientNames(out)
	peers := g.Peers()
	slices.SortFunc(peers, func(a, b gossip.Peer) int { return strings.Compare(a.Name, b.Name) })
	for i := range peers {
		p := &peers[i]
		if p.State == member.StateLeft {
			continue
		}
		r := admin.QueueRouter{Node: p.Name}
		figures, _ := n.history.Others(p.Name)
		switch {
		case p.State != member.StateAlive:
			r.Missing = "has failed"
		case !p.Connected:
			r.Missing = "is not heard"
		case figures[queueState] == 0:
			r.Missing = "has just started, or runs an older release"
		default:
			q := readQueue(figures, names)
			r.QueueTotal = q.QueueTotal
			join(out, q)
		}
		out.Routers = append(out.Routers, r)
	}
	slices.SortFunc(out.Clients, func(a, b admin.QueueClient) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Client, b.Client), strings.Compare(a.Priority, b.Priority))
	})
	beyond := max(len(out.Clients)-queueLines, 0)
	out.Clients, out.More = out.Clients[:len(out.Clients)-beyond], out.More+beyond
	return out
}

// ownQueue tells what waits at this node, with so many clients at most.
func (n *Node) ownQueue(lines int) *admin.QueueStatus {
	out := &admin.QueueStatus{Node: n.name, Priorities: []admin.QueuePriority{}, Clients: []admin.QueueClient{}}
	s, ok := n.proxy.QueueStanding(lines)
	if !ok {
		return out
	}
	out.On, out.More = true, s.More
	out.MaxRequests, out.MaxBytes, out.TimeoutS = s.Limits.Requests, s.Limits.Bytes, s.Limits.Wait.Seconds()
	out.DrainRate, out.BacklogS = s.Rate, s.Backlog.Seconds()
	for p, w := range slices.Backward(s.Priorities[:]) {
		r := s.Refused[p]
		out.Priorities = append(out.Priorities, admin.QueuePriority{
			Priority: clients.Priority(p).String(), QueueWaiting: waitingOf(w),
			RefusedFull: r.Full, RefusedTimeout: r.Timeout, RefusedDeadline: r.Late,
		})
		out.Refused += r.Full + r.Timeout + r.Late
		addWaiting(&out.QueueWaiting, waitingOf(w))
	}
	for _, l := range s.Lines {
		out.Clients = append(out.Clients, admin.QueueClient{Client: l.Client, Priority: l.Priority.String(), QueueWaiting: waitingOf(l.Waiting)})
	}
	return out
}

func waitingOf(w queue.Waiting) admin.QueueWaiting {
	return admin.QueueWaiting{Requests: w.Requests, Bytes: w.Bytes, Tokens: w.Tokens, OldestS: w.Oldest.Seconds()}
}

func addWaiting(sum *admin.QueueWaiting, w admin.QueueWaiting) {
	sum.Requests, sum.Bytes, sum.Tokens, sum.OldestS = sum.Requests+w.Requests, sum.Bytes+w.Bytes, sum.Tokens+w.Tokens, max(sum.OldestS, w.OldestS)
}

// join adds another router's queue.
func join(sum, q *admin.QueueStatus) {
	sum.On = sum.On || q.On
	addWaiting(&sum.QueueWaiting, q.QueueWaiting)
	sum.MaxRequests, sum.MaxBytes, sum.TimeoutS = sum.MaxRequests+q.MaxRequests, sum.MaxBytes+q.MaxBytes, max(sum.TimeoutS, q.TimeoutS)
	sum.DrainRate, sum.BacklogS = sum.DrainRate+q.DrainRate, max(sum.BacklogS, q.BacklogS)
	sum.Refused, sum.More = sum.Refused+q.Refused, sum.More+q.More
	if len(sum.Priorities) == 0 {
		sum.Priorities = q.Priorities
	} else {
		for i := range q.Priorities {
			to, from := &sum.Priorities[i], &q.Priorities[i]
			addWaiting(&to.QueueWaiting, from.QueueWaiting)
			to.RefusedFull, to.RefusedTimeout, to.RefusedDeadline = to.RefusedFull+from.RefusedFull, to.RefusedTimeout+from.RefusedTimeout, to.RefusedDeadline+from.RefusedDeadline
		}
	}
	for _, c := range q.Clients {
		i := slices.IndexFunc(sum.Clients, func(s admin.QueueClient) bool { return s.Client == c.Client && s.Priority == c.Priority })
		if i < 0 {
			sum.Clients = append(sum.Clients, c)
		} else {
			addWaiting(&sum.Clients[i].QueueWaiting, c.QueueWaiting)
		}
	}
}

// clientNames returns the names of clients by what figures say of them: those of this node's file, and those that wait here.
func (n *Node) clientNames(own *admin.QueueStatus) map[uint32]string {
	names := map[uint32]string{shortKey(""): ""}
	if book, _, _ := n.clients.state(); book != nil {
		for i := range book.Clients {
			names[shortKey(book.Clients[i].Name)] = book.Clients[i].Name
		}
	}
	for _, c := range own.Clients {
		names[shortKey(c.Client)] = c.Client
	}
	return names
}

// Keys of the figures by which a router tells its peers what waits at it; see node/DESIGN.md, History.
const (
	queueState       = history.OtherKey + iota // 1: no queue, 2: one
	queueMaxRequests                           // that may wait
	queueMaxBytes
	queueTimeout // milliseconds
	queueRate    // tokens per second
	queueBacklog // milliseconds
	queueMore    // clients that are left out

	queueBand = history.OtherKey + 16 // and 8 keys for each clients.Priority: requests, bytes, tokens, milliseconds, refused by reason
	queueLine = 3 << 29               // and shortKey << 4, the priority << 2: requests with milliseconds << 32; bytes; tokens
)

// shortKey is 25 bits of a client's key.
func shortKey(client string) uint32 { return clients.NameKey(client) & (1<<25 - 1) }

// appendQueue appends the figures of a queue.
func appendQueue(dst []gossip.Figure, q *admin.QueueStatus) []gossip.Figure {
	put := func(key uint32, v uint64) {
		if v > 0 {
			dst = append(dst, gossip.Figure{Key: key, Low: uint32(v), High: uint32(v >> 32)})
		}
	}
	if !q.On {
		put(queueState, 1)
		return dst
	}
	put(queueState, 2)
	put(queueMaxRequests, uint64(q.MaxRequests))
	put(queueMaxBytes, uint64(q.MaxBytes))
	put(queueTimeout, uint64(1000*q.TimeoutS))
	put(queueRate, uint64(q.DrainRate))
	put(queueBacklog, uint64(1000*q.BacklogS))
	for i := range q.Priorities {
		p := &q.Priorities[i]
		band, _ := clients.ParsePriority(p.Priority) // it names one
		for field, v := range []uint64{
			uint64(p.Requests), uint64(p.Bytes), uint64(p.Tokens), uint64(1000 * p.OldestS), p.RefusedFull, p.RefusedTimeout, p.RefusedDeadline,
		} {
			put(queueBand+8*uint32(band)+uint32(field), v)
		}
	}
	more, listed := q.More, make(map[uint32]bool)
	for i := range q.Clients {
		c := &q.Clients[i]
		band, _ := clients.ParsePriority(c.Priority)
		key := queueLine | shortKey(c.Client)<<4 | uint32(band)<<2
		if listed[key] { // a client of the same short key
			more++
			continue
		}
		listed[key] = true
		put(key, uint64(c.Requests)|uint64(1000*c.OldestS)<<32)
		put(key|1, uint64(c.Bytes))
		put(key|2, uint64(c.Tokens))
	}
	put(queueMore, uint64(more))
	return dst
}

// readQueue returns the queue of which a peer reports these figures.
func readQueue(figures map[uint32]uint64, names map[uint32]string) *admin.QueueStatus {
	q := &admin.QueueStatus{}
	if figures[queueState] != 2 {
		return q
	}
	q.On, q.More = true, int(figures[queueMore])
	q.MaxRequests, q.MaxBytes, q.TimeoutS = int(figures[queueMaxRequests]), int64(figures[queueMaxBytes]), float64(figures[queueTimeout])/1000
	q.DrainRate, q.BacklogS = float64(figures[queueRate]), float64(figures[queueBacklog])/1000
	for _, p := range slices.Backward(clients.Priorities()) {
		at := queueBand + 8*uint32(p)
		w := admin.QueueWaiting{
			Requests: int(figures[at]), Bytes: int64(figures[at+1]), Tokens: float64(figures[at+2]), OldestS: float64(figures[at+3]) / 1000,
		}
		r := admin.QueuePriority{Priority: p.String(), QueueWaiting: w, RefusedFull: figures[at+4], RefusedTimeout: figures[at+5], RefusedDeadline: figures[at+6]}
		q.Priorities = append(q.Priorities, r)
		q.Refused += r.RefusedFull + r.RefusedTimeout + r.RefusedDeadline
		addWaiting(&q.QueueWaiting, w)
	}
	for _, key := range slices.Sorted(maps.Keys(figures)) {
		client, p := key>>4&(1<<25-1), clients.Priority(key>>2&3)
		if key < queueLine || key&3 != 0 || p > clients.Interactive {
			continue
		}
		name, known := names[client]
		if !known {
			name = fmt.Sprintf("%07x, not a client of this router", client)
		}
		q.Clients = append(q.Clients, admin.QueueClient{Client: name, Priority: p.String(), QueueWaiting: admin.QueueWaiting{
			Requests: int(uint32(figures[key])), OldestS: float64(figures[key]>>32) / 1000, Bytes: int64(figures[key|1]), Tokens: float64(figures[key|2]),
		}})
	}
	return q
}

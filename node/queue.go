package node

import (
	"slices"

	"grapevine.example/node/admin"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/queue"
)

const queueLines = 100 // that an answer lists

// Queue tells what waits at this node for an engine.
func (n *Node) Queue() *admin.QueueStatus {
	out := &admin.QueueStatus{Node: n.name, Priorities: []admin.QueuePriority{}, Clients: []admin.QueueClient{}}
	s, ok := n.proxy.QueueStanding(queueLines)
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
		out.Requests, out.Bytes, out.OldestS = out.Requests+w.Requests, out.Bytes+w.Bytes, max(out.OldestS, w.Oldest.Seconds())
	}
	for _, l := range s.Lines {
		out.Clients = append(out.Clients, admin.QueueClient{Client: l.Client, Priority: l.Priority.String(), QueueWaiting: waitingOf(l.Waiting)})
	}
	return out
}

func waitingOf(w queue.Waiting) admin.QueueWaiting {
	return admin.QueueWaiting{Requests: w.Requests, Bytes: w.Bytes, Tokens: w.Tokens, OldestS: w.Oldest.Seconds()}
}

package raftstore

import "time"

// Status is how the store is doing, for people and metrics.
type Status struct {
	ID        string         `json:"id"`
	Addr      string         `json:"addr"`
	Group     string         `json:"group"` // hex; empty before this node belongs to a group
	Role      string         `json:"role"`  // leader, follower, candidate, waiting (for a group) or failed
	Leader    string         `json:"leader"`
	Term      uint64         `json:"term"`
	LastIndex uint64         `json:"last_index"`
	Committed uint64         `json:"committed"`
	Snapshot  uint64         `json:"snapshot"` // index of the newest snapshot
	Version   uint64         `json:"version"`  // of State
	Servers   []ServerStatus `json:"servers"`  // sorted by id
	// Problem says what an operator should do something about; empty if nothing.
	Problem string `json:"problem,omitempty"`
	// Waiting says what a node without a group waits for.
	Waiting string     `json:"waiting,omitempty"`
	Writes  WriteStats `json:"writes"`
}

// ServerStatus is one server of the group's configuration. What only a leader
// knows is zero elsewhere.
type ServerStatus struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"` // as gossip knows it; empty if it does not
	Addr    string    `json:"addr"`
	Voter   bool      `json:"voter"`
	Alive   bool      `json:"alive"`             // gossip says so
	Healthy bool      `json:"healthy,omitempty"` // leader: answers, and its log is near the end
	Index   uint64    `json:"index,omitempty"`   // leader: last log index it told
	Since   time.Time `json:"since,omitzero"`    // leader: when Healthy last changed
}

// WriteStats are the writes to this node's disk.
type WriteStats struct {
	Count  uint64        `json:"count"`
	Failed uint64        `json:"failed"`
	Last   time.Duration `json:"last_ns"`
	Max    time.Duration `json:"max_ns"` // since the store was opened
}

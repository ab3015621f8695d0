package admin

import "grapevine.example/gossip"

type FleetStatus struct {
	Nodes          int     `json:"nodes"`         // alive, including this one
	WarmFraction   float64 `json:"warm_fraction"` // of the snapshot at the start, 0 to 1
	StalenessMS    float64 `json:"staleness_ms"`  // age of peers' actions when known here, at most
	BlindDecisions uint64  `json:"blind_decisions"`
	Incomplete     int     `json:"incomplete"` // peers with missing batches
	Refused        uint64  `json:"refused"`    // rejected join attempts
}

type NodeList struct {
	// Nodes are this node, then peers by name, recently departed ones included.
	Nodes []NodeStatus `json:"nodes"`
	// LagsMS has a row for each of Nodes, with how late it hears each of them; null: not at all, or it
	// does not report it. Peers' lags are rounded to a quarter.
	LagsMS [][]*float64 `json:"lags_ms"`
	// Seeds are the outcomes of the last join attempts.
	Seeds    []SeedStatus    `json:"seeds"`
	Refusals []RefusalStatus `json:"refusals"`
}

type NodeStatus struct {
	Name          string  `json:"name"`
	Self          bool    `json:"self"`
	State         string  `json:"state"` // alive, failed or left
	SinceS        float64 `json:"since_s"`
	Gossip        string  `json:"gossip"`
	Data          string  `json:"data"`
	Admin         string  `json:"admin"`
	Version       string  `json:"version"`
	StartedMS     uint64  `json:"started_ms"` // Unix milliseconds
	Connected     bool    `json:"connected"`
	LagMS         float64 `json:"lag_ms"`
	RTTMS         float64 `json:"rtt_ms"`
	OffsetMS      float64 `json:"offset_ms"`  // added to its clock, gives this node's
	Subscribed    bool    `json:"subscribed"` // it receives this node's news
	Behind        uint64  `json:"behind"`     // batches not yet sent to it
	Missed        uint64  `json:"missed"`     // its batches too old to resume, replaced by a snapshot
	ReceivedBytes uint64  `json:"received_bytes"`
	SentBytes     uint64  `json:"sent_bytes"`
	LastError     string  `json:"last_error,omitempty"`
}

type SeedStatus struct {
	Seed  string  `json:"seed"`
	Addr  string  `json:"addr"`
	AgeS  float64 `json:"age_s"`
	Error string  `json:"error,omitempty"`
}

type RefusalStatus struct {
	Name  string  `json:"name"`
	Addr  string  `json:"addr"`
	AgeS  float64 `json:"age_s"`
	Count int     `json:"count"`
	Error string  `json:"error"`
}

type GossipStatus struct {
	Node   string                `json:"node"`
	Stats  gossip.Stats          `json:"stats"`
	Outbox OutboxStatus          `json:"outbox"`
	Peers  map[string]PeerStatus `json:"peers"`
	// A peer whose entry for this node shows the same Process (incarnation) and Position (next
	// batch), and is not incomplete, has all of this node's news.
	Process  uint64 `json:"process"`
	Position uint64 `json:"position"`
	// Facts is only set with ?facts=1, because it takes a scan.
	Facts    *FactsStatus `json:"facts,omitempty"`
	Unknown  uint64       `json:"unknown"`   // about unlisted backends without a free number
	BadState uint64       `json:"bad_state"` // malformed blobs
}

type OutboxStatus struct {
	Pending     int    `json:"pending"`
	Sent        uint64 `json:"sent"`
	LostAdds    uint64 `json:"lost_adds"`
	LostTouches uint64 `json:"lost_touches"`
	LostDrops   uint64 `json:"lost_drops"`
	Unnamed     uint64 `json:"unnamed"`
}

// PeerStatus counts records from a peer unless a name says otherwise.
type PeerStatus struct {
	LagMS         float64 `json:"lag_ms"`
	Received      uint64  `json:"received"`
	Applied       uint64  `json:"applied"`
	News          uint64  `json:"news"` // changed the tree
	Dropped       uint64  `json:"dropped"`
	Unknown       uint64  `json:"unknown"`    // no free number
	Process       uint64  `json:"process"`    // incarnation that Position belongs to
	Position      uint64  `json:"position"`   // next batch to apply
	Incomplete    bool    `json:"incomplete"` // batches below Position are missing
	MissedBatches uint64  `json:"missed_batches"`
	Violations    uint64  `json:"violations"` // streams closed because of invalid data
	Connects      uint64  `json:"connects"`
	ReceivedBytes uint64  `json:"received_bytes"`
	SentBytes     uint64  `json:"sent_bytes"`
}

// FactsStatus is the digest of live facts; equal trees have equal digests.
type FactsStatus struct {
	Count uint64 `json:"count"`
	XOR   string `json:"xor"`
	// Backends is by prefixtree.BackendKey in hexadecimal.
	Backends map[string]FactsOf `json:"backends"`
}

type FactsOf struct {
	Count uint64 `json:"count"`
	XOR   string `json:"xor"`
}

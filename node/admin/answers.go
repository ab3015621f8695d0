package admin

import (
	"cmp"
	"time"

	"grapevine.example/node/history"
	"grapevine.example/raftstore"
)

type Changed struct {
	// Version is that of the change, or this node's current one.
	Version uint64 `json:"version"`
	Changed bool   `json:"changed"`
}

// Status is the answer to GET /status.
type Status struct {
	Node        string             `json:"node"`
	Version     string             `json:"version"`
	GoVersion   string             `json:"go_version"`
	UptimeS     float64            `json:"uptime_s"`
	Ready       bool               `json:"ready"`
	NotReady    string             `json:"not_ready,omitempty"` // why
	Listen      string             `json:"listen"`
	Admin       string             `json:"admin"`
	Strategy    string             `json:"strategy"`
	Backends    int                `json:"backends"`
	InFlight    int                `json:"in_flight"`
	Connections int                `json:"connections"`
	BlockBytes  int                `json:"block_bytes"`
	KeyID       string             `json:"key_id"` // of the hash secret
	Picks       uint64             `json:"picks"`
	Rungs       map[string]uint64  `json:"rungs"`
	Caches      map[string]int     `json:"caches"`   // backends by CacheStatus.Known
	Affinity    []Affinity         `json:"affinity"` // busiest first, at most 16
	Engines     EngineSummary      `json:"engines"`
	Tree        TreeStatus         `json:"tree"`
	Fleet       *FleetStatus       `json:"fleet"` // null without one
	Certificate *CertificateStatus `json:"certificate"`
	Reload      *ReloadStatus      `json:"reload,omitempty"` // absent: no reload since the start
}

// ReloadStatus is the last reload.
type ReloadStatus struct {
	AgeS        float64         `json:"age_s"`
	Error       string          `json:"error,omitempty"` // why it was refused: the rest is of the last that was not
	Applied     []SettingChange `json:"applied"`
	AtNextStart []SettingChange `json:"at_next_start"`
}

// SettingChange is the difference of a setting, both values cut to some 200 bytes; secrets are hidden, of backends only names are shown.
type SettingChange struct {
	Key  string `json:"key"`
	From string `json:"from"`
	To   string `json:"to"`
}

func (c SettingChange) String() string { return c.Key + ": " + shown(c.From) + " -> " + shown(c.To) }

func shown(value string) string { return cmp.Or(value, "(empty)") }

// Affinity is what the reuse of caches gains a model that strategy prefix routes, at this node over
// the last minute. Times are in seconds per second, as estimated when each request was routed.
type Affinity struct {
	Model        string  `json:"model"` // "": requests without one; "*": models that no backend lists
	RequestsPerS float64 `json:"requests_per_s"`
	PromptsS     float64 `json:"prompts_s"` // prefill of the whole prompts
	PrefillS     float64 `json:"prefill_s"` // what caches do not save of it
	SavedS       float64 `json:"saved_s"`   // prefill saved by choosing a cache, not the shortest wait
	WaitedS      float64 `json:"waited_s"`  // longer waits for these caches
	// Price is the seconds that a second of prefill costs other requests, at the latest request.
	Price float64 `json:"price"`
	// Verdict says in a sentence whether choosing caches pays: "routed by load" if it saves less than
	// 1 % of the prefill of the whole prompts.
	Verdict string `json:"verdict"`
}

// EngineSummary counts engines by their state, as this node routes by it.
type EngineSummary struct {
	Active   int `json:"active"`
	Draining int `json:"draining"`
	Down     int `json:"down"`
	Avoided  int `json:"avoided"` // active, but failed here lately
	// Attention are those that are not active, at most 8.
	Attention []EngineTrouble `json:"attention"`
}

type EngineTrouble struct {
	Name   string  `json:"name"`
	State  string  `json:"state"` // draining, down or avoided
	Reason string  `json:"reason,omitempty"`
	SinceS float64 `json:"since_s,omitempty"`
}

// History is the answer to GET /history: figures of all nodes.
type History struct {
	Node      string `json:"node"`
	Nodes     int    `json:"nodes"`     // alive
	Reporting int    `json:"reporting"` // of these; others are of a release that does not report
	*history.Span
}

type TreeStatus struct {
	Facts      int64  `json:"facts"`
	Bytes      int64  `json:"bytes"`
	Budget     int64  `json:"budget"`
	Evicted    uint64 `json:"evicted"`
	Expired    uint64 `json:"expired"`
	Retracted  uint64 `json:"retracted"`
	Surprises  uint64 `json:"surprises"`
	CachesLost uint64 `json:"caches_lost"`
}

type BackendList struct {
	Backends []BackendStatus `json:"backends"`
	Sources  []SourceStatus  `json:"sources"`
}

// BackendStatus is one backend as this node knows it. Loads are its own unless named fleet.
type BackendStatus struct {
	Name     string  `json:"name"`
	URL      string  `json:"url"`
	State    string  `json:"state"` // active, draining, down, or avoided: failed here, retried in RetryInS
	RetryInS float64 `json:"retry_in_s,omitempty"`
	// Agreed is false for a backend known only from this node's own list.
	Agreed  bool `json:"agreed"`
	Drained bool `json:"drained"` // drain requested; kept while down
	// DrainedBy and DownBy are operator, source or health.
	DrainedBy     string        `json:"drained_by,omitempty"`
	DownBy        string        `json:"down_by,omitempty"`
	Source        string        `json:"source"` // static, file, dns or admin
	Reason        string        `json:"reason,omitempty"`
	SinceS        float64       `json:"since_s,omitempty"` // of the agreed state
	Generation    uint32        `json:"generation"`
	Version       uint64        `json:"version"` // of its last change, for if_version
	Weight        float64       `json:"weight"`
	KVTokens      int           `json:"kv_tokens,omitempty"`
	Role          string        `json:"role,omitempty"` // prefill or decode; absent: both
	BootstrapPort uint16        `json:"bootstrap_port,omitempty"`
	Labels        []string      `json:"labels,omitempty"` // NAME=VALUE, sorted
	Active        int64         `json:"active"`           // requests of this node
	FleetActive   int64         `json:"fleet_active"`     // of all nodes, as last reported
	PrefillTokens int64         `json:"prefill_tokens"`   // outstanding
	QueueS        float64       `json:"queue_s"`          // prefill outstanding of all nodes, in seconds of the engine
	Rate          float64       `json:"rate"`             // prefill tokens/s, learned
	RateFrom      string        `json:"rate_from"`        // engine: what it reports of itself; requests: what nodes measure
	HorizonS      float64       `json:"horizon_s"`
	Cache         CacheStatus   `json:"cache"`
	Health        HealthStatus  `json:"health"`
	Engine        *EngineReport `json:"engine"`
	Models        []string      `json:"models"`      // null: any
	ModelsFrom    string        `json:"models_from"` // configured, engine or unknown
	ModelsError   string        `json:"models_error,omitempty"`
}

// CacheStatus says how this node knows what an engine caches.
type CacheStatus struct {
	// Known is exact (this node follows the engine's cache events), degraded (some are lost), reported (other nodes follow them and
	// tell what was evicted) or predicted (from placements and reported cached tokens).
	Known     string   `json:"known"`
	Why       string   `json:"why,omitempty"` // of what is not exact
	Followers []string `json:"followers"`     // nodes that follow the engine
	Blocks    int      `json:"blocks"`        // of the engine, as this node counts them
}

// EngineReport is an engine's whole load, from all routers.
type EngineReport struct {
	From    string  `json:"from"` // /metrics or, of SGLang, /v1/loads
	AgeS    float64 `json:"age_s"`
	Running int     `json:"running"`  // requests
	Waiting int     `json:"waiting"`  // requests
	KVUsage float64 `json:"kv_usage"` // 0 to 1
	// QueuedTokens is the prompt tokens that it has yet to compute; -1: not reported.
	QueuedTokens int64 `json:"queued_tokens"`
}

type HealthStatus struct {
	Failing   bool     `json:"failing"`            // own probes or requests
	Avoided   bool     `json:"avoided"`            // here, by probes or peers
	Reason    string   `json:"reason,omitempty"`   // refused, connect, timeout, reset, 5xx or tls
	SinceS    float64  `json:"since_s,omitempty"`  // failing or well
	ProbedS   *float64 `json:"probed_s,omitempty"` // since the last own probe; null: none
	Reporters []string `json:"reporters"`          // nodes that probe it
	OK        int      `json:"ok"`                 // reporters
	Bad       int      `json:"bad"`                // reporters
}

type SourceStatus struct {
	Source   string  `json:"source"`
	Backends int     `json:"backends"` // of the last good answer
	AgeS     float64 `json:"age_s"`    // of the last good answer; 0: none yet
	// Error is the last failure, or the entries that do not count.
	Error string `json:"error,omitempty"`
}

type CertificateStatus struct {
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// Problem is why clients refuse it now.
	Problem string `json:"problem,omitempty"`
}

// ClientList is the clients of clients_file that are in force.
type ClientList struct {
	File    string         `json:"file"` // "": everybody may use the router
	Node    string         `json:"node"`
	UptimeS float64        `json:"uptime_s"`
	AgeS    float64        `json:"age_s"`
	Error   string         `json:"error,omitempty"` // of a file that is wrong now
	Clients []ClientStatus `json:"clients"`
}

// ClientStatus has the keys of the YAML form.
type ClientStatus struct {
	Name            string   `json:"name"`
	Keys            int      `json:"keys"`
	Anonymous       bool     `json:"anonymous"` // requests without a key count as its own
	Models          []string `json:"models,omitempty"`
	Paths           []string `json:"paths,omitempty"`
	Priority        string   `json:"priority"`
	Weight          float64  `json:"weight"`
	TokensPerMinute int64    `json:"tokens_per_minute,omitempty"`
	InFlight        int      `json:"in_flight,omitempty"`
	Trusted         bool     `json:"trusted"`

	// Over the fleet, now; tokens only of clients with such a limit.
	TokensUsed int64 `json:"tokens_used"`
	Requests   int   `json:"requests"` // in flight

	Here ClientAccount `json:"here"`
}

// ClientAccount is what a client's requests used at this node since its start. Tokens are as engines count them.
type ClientAccount struct {
	Requests     uint64  `json:"requests"` // forwarded
	Failed       uint64  `json:"failed"`   // of these
	Refused      uint64  `json:"refused"`  // by the client's limits
	PromptTokens uint64  `json:"prompt_tokens"`
	CachedTokens uint64  `json:"cached_tokens"` // of PromptTokens
	OutputTokens uint64  `json:"output_tokens"`
	PrefillS     float64 `json:"prefill_s"` // seconds of engines
	DecodeS      float64 `json:"decode_s"`
	SavedS       float64 `json:"saved_s"` // by caches, of prefill
	Cost         float64 `json:"cost"`    // of PrefillS and DecodeS, by gpu_hour_price
	// Of streams, estimated from few buckets; 0: none yet.
	TTFTP50  float64 `json:"ttft_p50_s"`
	TTFTP90  float64 `json:"ttft_p90_s"`
	SpeedP50 float64 `json:"output_tokens_per_s_p50"`
	// In the router's queue: requests that waited, how long they did, and requests answered 429.
	Waited       uint64  `json:"queue_waited"`
	WaitP50      float64 `json:"queue_wait_p50_s"`
	WaitP90      float64 `json:"queue_wait_p90_s"`
	QueueRefused uint64  `json:"queue_refused"`
}

// QueueStatus is what waits for engines at the routers that report it: the sums, and each.
type QueueStatus struct {
	Node string `json:"node"` // that answers
	QueueTotal
	Priorities []QueuePriority `json:"priorities"` // the highest first; empty without a queue
	Clients    []QueueClient   `json:"clients"`    // 100 at most, those with most requests
	More       int             `json:"more"`       // entries that Clients leaves out
	Routers    []QueueRouter   `json:"routers"`    // the answering one first, then by name
}

// QueueTotal is the queue of a router, or of several: the longest of their times and the sums of the rest.
type QueueTotal struct {
	On bool `json:"on"` // false: requests wait inside engines
	QueueWaiting
	// What may wait, and how long.
	MaxRequests int     `json:"max_requests"`
	MaxBytes    int64   `json:"max_bytes"`
	TimeoutS    float64 `json:"timeout_s"`
	// DrainRate is the tokens, of prompts to compute and of outputs, that leave per second while requests wait; BacklogS is how long
	// the present ones take at that rate. 0: not known.
	DrainRate float64 `json:"drain_tokens_per_s"`
	BacklogS  float64 `json:"backlog_s"`
	Refused   uint64  `json:"refused"` // requests answered 429 since the routers' start, for any reason of QueuePriority
}

// QueueRouter is one router's queue. Those of other routers are up to some seconds old.
type QueueRouter struct {
	Node string `json:"node"`
	// Missing says why the router's queue is not known, and not in the sums; "": it is.
	Missing string `json:"missing,omitempty"`
	QueueTotal
}

type QueuePriority struct {
	Priority string `json:"priority"`
	QueueWaiting
	// Requests answered 429 since the routers' start: without a place, after the longest wait, for their deadline.
	RefusedFull     uint64 `json:"refused_full"`
	RefusedTimeout  uint64 `json:"refused_timeout"`
	RefusedDeadline uint64 `json:"refused_deadline"`
}

type QueueClient struct {
	Client   string `json:"client"` // "": requests of no client
	Priority string `json:"priority"`
	QueueWaiting
}

// QueueWaiting is requests that wait now.
type QueueWaiting struct {
	Requests int     `json:"requests"`
	Bytes    int64   `json:"bytes"`
	Tokens   float64 `json:"tokens"`   // of prompts to compute and of outputs
	OldestS  float64 `json:"oldest_s"` // how long the first in line has waited
}

type RuleSet struct {
	// Source is "fleet", or "configuration" for this node's own rules.
	Source  string       `json:"source"`
	Version uint64       `json:"version"` // of the fleet's rules; 0: none yet
	Text    string       `json:"text"`    // as applied; empty for a node's own
	Rules   []RuleStatus `json:"rules"`
}

// RuleStatus has the keys of the YAML form.
type RuleStatus struct {
	Name        string   `json:"name,omitempty"`
	Model       string   `json:"model,omitempty"`
	Path        string   `json:"path,omitempty"`
	Header      string   `json:"header,omitempty"`
	HeaderValue string   `json:"value,omitempty"`
	Share       string   `json:"share,omitempty"` // as 5%
	Session     string   `json:"session,omitempty"`
	To          string   `json:"to,omitempty"`
	Pool        []string `json:"pool,omitempty"`     // labels
	Fallback    []string `json:"fallback,omitempty"` // labels, or any
	Strategy    string   `json:"strategy,omitempty"` // absent: the router's
}

type RuleChange struct {
	Changed
	DryRun bool `json:"dry_run"`
	// Difference is the change by line, with "-" and "+".
	Difference string `json:"difference"`
}

type PrefixList struct {
	Enabled  bool           `json:"enabled"`
	Prefixes []PrefixStatus `json:"prefixes"` // by anchor
}

// PrefixStatus is one hot prefix and its replica set.
type PrefixStatus struct {
	Anchor   string `json:"anchor"`   // hex
	Tokens   uint32 `json:"tokens"`   // length of the prefix
	Replicas uint16 `json:"replicas"` // size of the replica set
	// Backends is in order of preference; empty while no node reports work.
	Backends []string `json:"backends"`
	// Share is the prefix's share of requests, Work the backends that its requests keep busy, Other
	// the rest of each backend's load, over all nodes.
	Share    float64 `json:"share"`
	Work     float64 `json:"work"`
	Other    float64 `json:"other"`
	Why      string  `json:"why"`
	AgeS     float64 `json:"age_s"` // since it became hot
	ChangedS float64 `json:"changed_s"`
	ExpiresS float64 `json:"expires_s"` // from now; renewed while hot
}

// PrefixTree is the prefixes that prompts share, as the requests of one node have shown: hashes and lengths.
type PrefixTree struct {
	Node  string           `json:"node"`
	Pools []PrefixTreePool `json:"pools"` // 4 at most, the busiest first
}

// PrefixTreePool is of the engines of one model.
type PrefixTreePool struct {
	Model    string  `json:"model"`          // "": requests without one; "*": models that no engine lists
	Pool     string  `json:"pool,omitempty"` // the labels of the engines, as a rule names them
	Requests float64 `json:"requests"`       // that shares are of: of more than 2,048, older ones count half, and so on
	// Prefixes has each one behind the one above it; 32 at most in all pools.
	Prefixes []SharedPrefix `json:"prefixes"`
}

// SharedPrefix is a prefix from whose end prompts go on in different ways.
type SharedPrefix struct {
	Anchor string  `json:"anchor"`          // hex
	Above  string  `json:"above,omitempty"` // the longest other one listed that it begins with; absent: none
	Tokens float64 `json:"tokens"`          // its length
	Share  float64 `json:"share"`           // of the requests, 0 to 1; a lower bound for one that is new
	// Continued counts the requests that went on from its end as no engine had seen before.
	Continued int      `json:"continued"`
	Holders   int      `json:"holders"`  // engines that hold it, up to its last three blocks
	Backends  []string `json:"backends"` // of these, 8 at most
	Hot       bool     `json:"hot"`      // the fleet keeps it at several engines on purpose
}

// Receipt explains one decision. Token counts are estimates; see policy.Decision.
type Receipt struct {
	Node        string `json:"node"`
	Path        string `json:"path"`
	Model       string `json:"model"`
	PromptBytes int    `json:"prompt_bytes"`
	Blocks      int    `json:"blocks"`
	// Rule is the name of the rule that the request follows, Asked the model that the client named if the rule asks engines for
	// another, Pool the labels of the backends that may serve it, and Fallback says that the rule's own pool has none now.
	Rule     string `json:"rule,omitempty"`
	Asked    string `json:"asked,omitempty"`
	Pool     string `json:"pool,omitempty"`
	Fallback bool   `json:"fallback,omitempty"`
	// Note says how a real request would be treated differently.
	Note string `json:"note,omitempty"`

	Backend         string `json:"backend"`
	Strategy        string `json:"strategy"`
	Rung            string `json:"rung"`
	PromptTokens    int    `json:"prompt_tokens"`
	MatchedBlocks   int    `json:"matched_blocks"`
	PredictedTokens int    `json:"predicted_tokens"` // expected cached
	Exact           bool   `json:"exact"`            // PredictedTokens is known by the engine's events
	Hot             string `json:"hot,omitempty"`    // the prompt's hot anchor
	Replicas        int    `json:"replicas"`         // agreed holders of Hot; 0: none
	Eligible        int    `json:"eligible"`         // candidates in all
	Trial           bool   `json:"trial"`            // the chosen backend failed lately
	LastResort      bool   `json:"last_resort"`      // all backends failed lately
	// LoadFrom says who reported the load: engines, or nodes (of each other's work); absent on a single node.
	LoadFrom string  `json:"load_from,omitempty"`
	LoadAgeS float64 `json:"load_age_s"` // of these reports
	// Why compares the chosen backend's cost under strategy prefix with that of another candidate
	// that holds more of the prompt or, if none does, less; empty under other strategies.
	Why string `json:"why,omitempty"`
	// Candidates are the chosen backend, then the cheapest, at most policy.MaxConsidered.
	Candidates []Candidate `json:"candidates"`
	// Prefill says which backend computes the prompt, if Backend has the role decode and another could.
	Prefill *PrefillReceipt `json:"prefill,omitempty"`
}

// PrefillReceipt compares the best prefill backend with the decode backend.
type PrefillReceipt struct {
	Backend         string      `json:"backend"` // the prefill backend
	Elsewhere       bool        `json:"elsewhere"`
	MatchedBlocks   int         `json:"matched_blocks"`
	PredictedTokens int         `json:"predicted_tokens"`
	RemoteS         float64     `json:"remote_s"` // until the decode backend has fetched the KV cache
	AloneS          float64     `json:"alone_s"`  // at the decode backend, with the delay of its running requests
	Candidates      []Candidate `json:"candidates"`
}

type Candidate struct {
	Backend       string  `json:"backend"`
	MatchedBlocks int     `json:"matched_blocks"`
	HeldTokens    float64 `json:"held_tokens"`   // of the prompt
	Exact         bool    `json:"exact"`         // HeldTokens is known by the engine's events
	QueuedTokens  float64 `json:"queued_tokens"` // ahead of it
	Active        int64   `json:"active"`        // requests
	Rate          float64 `json:"rate"`          // prefill tokens/s
	AgeS          float64 `json:"age_s"`         // since use of the deepest held block
	Cost          float64 `json:"cost"`          // in the strategy's unit
	// The parts of Cost in seconds under strategy prefix, else 0: until the engine begins with it,
	// the price of the way to another zone, prefill of what its cache lacks, and what this prefill costs other requests.
	WaitS    float64 `json:"wait_s"`
	ZoneS    float64 `json:"zone_s"`
	ComputeS float64 `json:"compute_s"`
	LaterS   float64 `json:"later_s"`
}

// ReceiptList is the receipts of this node's last 256 requests, newest first.
type ReceiptList struct {
	Node     string          `json:"node"`
	Receipts []RequestRecord `json:"receipts"`
}

// RequestRecord is what decided about a request that ended, and what came of it. Candidates are only
// set if one id was asked for.
type RequestRecord struct {
	AtMS            int64       `json:"at_ms"` // Unix ms of its arrival
	ID              string      `json:"id"`
	Path            string      `json:"path"`
	Model           string      `json:"model"`
	Client          string      `json:"client,omitempty"`
	Status          int         `json:"status"` // 499: the client left
	Backend         string      `json:"backend"`
	Strategy        string      `json:"strategy"`
	Rung            string      `json:"rung"`
	Eligible        int         `json:"eligible"`
	Attempts        int         `json:"attempts"`
	Failed          string      `json:"failed,omitempty"`
	PromptTokens    int         `json:"prompt_tokens"` // by the engine; -1: unknown
	CachedTokens    int         `json:"cached_tokens"` // likewise
	OutputTokens    int         `json:"output_tokens"` // likewise
	PredictedTokens int         `json:"predicted_tokens"`
	QueueS          float64     `json:"queue_s"` // until the last dispatch
	TTFTS           float64     `json:"ttft_s"`  // 0: none
	TotalS          float64     `json:"total_s"`
	Candidates      []Candidate `json:"candidates,omitempty"`
}

type RaftStatus struct {
	Node string `json:"node"`
	raftstore.Status
}

// KeyList is each node's ring, keys as ids only.
type KeyList struct {
	Nodes []NodeKeys `json:"nodes"`
	Error string     `json:"error,omitempty"`
}

type NodeKeys struct {
	Node string `json:"node"`
	// Primary encrypts; all Keys are accepted.
	Primary   string   `json:"primary"`
	Keys      []string `json:"keys"`
	Persisted bool     `json:"persisted"`
	Error     string   `json:"error,omitempty"`
}

// Package config holds the settings of a node: their table, the YAML file, defaults and checks.
package config

import (
	"net"
	"time"

	"github.com/rs/zerolog"
)

// Config configures one node; its struct tags define all settings (see Settings). Start from
// Default; New copies what it needs.
type Config struct {
	// Log receives all log lines; see NewLogger.
	Log zerolog.Logger `yaml:"-" kong:"-"`
	// Level, if not nil, is the level of Log; Reload sets it to log_level.
	Level *LogLevel `yaml:"-" kong:"-"`
	// Version appears in /status and grapevine_build_info.
	Version string `yaml:"-" kong:"-"`
	// Listener, if not nil, is used instead of Listen. The started node closes it.
	Listener net.Listener `yaml:"-" kong:"-"`

	Listen         string `yaml:"listen" name:"listen" env:"GRAPEVINE_LISTEN" default:":8080" placeholder:"ADDR" group:"serving" help:"Address clients connect to."`
	Admin          string `yaml:"admin" name:"admin" env:"GRAPEVINE_ADMIN" default:"127.0.0.1:8081" placeholder:"ADDR" group:"serving" help:"Address of the admin API (health, metrics, receipts, operation). Without --admin-token-file it takes changes from this machine only, and shows backends, nodes and load to who reaches it."`
	AdminTokenFile string `yaml:"admin_token_file" reload:"file" name:"admin-token-file" env:"GRAPEVINE_ADMIN_TOKEN_FILE" placeholder:"FILE" group:"serving" help:"File that holds the token (16 bytes or more) without which the admin API tells only health and metrics. Read again for each request, so that it can be replaced."`
	MetricsListen  string `yaml:"metrics_listen" name:"metrics-listen" env:"GRAPEVINE_METRICS_LISTEN" placeholder:"ADDR" group:"serving" help:"Address that serves /metrics, /healthz and /readyz and nothing else, to everyone who reaches it, for collectors on other machines. Empty: they are on the admin API alone."`
	NodeName       string `yaml:"node_name" name:"node-name" env:"GRAPEVINE_NODE_NAME" placeholder:"NAME" group:"serving" help:"Name of this node in logs, status and x-grapevine-node; the host name if empty."`
	TLSCert        string `yaml:"tls_cert" reload:"file" name:"tls-cert" env:"GRAPEVINE_TLS_CERT" placeholder:"FILE" group:"serving" help:"PEM certificate chain; with --tls-key the data port speaks TLS."`
	TLSKey         string `yaml:"tls_key" reload:"file" name:"tls-key" env:"GRAPEVINE_TLS_KEY" placeholder:"FILE" group:"serving" help:"PEM private key of --tls-cert."`
	ProxyProtocol  bool   `yaml:"proxy_protocol" name:"proxy-protocol" env:"GRAPEVINE_PROXY_PROTOCOL" default:"false" group:"serving" help:"Require a PROXY protocol v1 or v2 header on every data connection, health checks of the balancer included."`

	PassPaths          []string `yaml:"pass_paths" name:"pass-paths" env:"GRAPEVINE_PASS_PATHS" sep:" " placeholder:"PREFIX" group:"serving" help:"A path, with all below it, that clients may reach on engines although the router does not know it; by default it forwards paths of inference only. The api_key of an engine is not added, and the body is not read. Repeatable."`
	AllowEngineControl bool     `yaml:"allow_engine_control" name:"allow-engine-control" env:"GRAPEVINE_ALLOW_ENGINE_CONTROL" default:"false" group:"serving" help:"Pass on what tells an engine where to compute and where to take KV blocks from (kv_transfer_params, bootstrap_*, data-parallel ranks, x-override-*, ...), and inference bodies that the router cannot read. Only where every client is trusted."`
	ResponseHeaders    string   `yaml:"response_headers" name:"response-headers" env:"GRAPEVINE_RESPONSE_HEADERS" default:"none" placeholder:"none|route|all" group:"serving" help:"Which x-grapevine headers a response carries: none; route (x-grapevine-route: the reason for the choice and the tokens believed cached, from which a client can guess prompts of other clients unless tenant is set); all (also x-grapevine-node and x-grapevine-backend: names and addresses inside the fleet)."`
	Tenant             string   `yaml:"tenant" name:"tenant" env:"GRAPEVINE_TENANT" default:"none" placeholder:"none|credential|header:NAME" group:"serving" help:"Whose prompts share no cache with others': those of each credential (Authorization, X-Api-Key) or each value of a header, which something in front must set. Engines are given a cache_salt. Must be equal on every node of a fleet."`

	Backends        []Backend     `yaml:"backends" reload:"api_key" name:"backend" env:"GRAPEVINE_BACKENDS" sep:" " placeholder:"URL" group:"backends" help:"An engine: URL[,name=N][,models=A|B][,weight=W][,kv_tokens=T][,api_key_file=F][,api_key=K][,ca_file=F]. Repeatable."`
	BackendsFrom    []string      `yaml:"backends_from" name:"backends-from" env:"GRAPEVINE_BACKENDS_FROM" sep:" " placeholder:"SOURCE" group:"backends" help:"Where to learn of engines: file:PATH (a URL a line as in --backend, or YAML as in backends; watched), dns:NAME:PORT (every address of the name, resolved again and again) or srv:_SERVICE._tcp.NAME. The node that leads adds what they name, and drains and removes what they do not name any more. Repeatable; the same on every node that votes."`
	ModelsInterval  time.Duration `yaml:"models_interval" name:"models-interval" env:"GRAPEVINE_MODELS_INTERVAL" default:"30s" placeholder:"DURATION" group:"backends" help:"How often each engine is asked for its /v1/models. 0 asks never: every engine without a models list then serves any model."`
	MetricsInterval time.Duration `yaml:"metrics_interval" name:"metrics-interval" env:"GRAPEVINE_METRICS_INTERVAL" default:"5s" placeholder:"DURATION" group:"backends" help:"How often each engine is asked for its /metrics: the size and the use of its KV cache, and its queue. 0 asks never."`

	ProbeInterval time.Duration `yaml:"probe_interval" name:"probe-interval" env:"GRAPEVINE_PROBE_INTERVAL" default:"1s" placeholder:"DURATION" group:"backends" help:"How often each of the three nodes that look after an engine asks whether it lives."`
	ProbeTimeout  time.Duration `yaml:"probe_timeout" name:"probe-timeout" env:"GRAPEVINE_PROBE_TIMEOUT" default:"1.5s" placeholder:"DURATION" group:"backends" help:"How long the answer may take. Two failures in a row count, or six of an engine that takes the connection and does not answer; a timeout does not while requests are being answered."`
	ProbePath     string        `yaml:"probe_path" name:"probe-path" env:"GRAPEVINE_PROBE_PATH" default:"/health" placeholder:"PATH" group:"backends" help:"What is asked for; /v1/models instead where that is not found. Any answer below 500 is a sign of life. - asks for nothing: engines are then judged by requests alone."`
	SlowStart     time.Duration `yaml:"slow_start" name:"slow-start" env:"GRAPEVINE_SLOW_START" default:"30s" placeholder:"DURATION" group:"backends" help:"How long the share of an engine that comes back, or is new, grows from a tenth to all of it. 0 gives it all at once."`

	Strategy   string             `yaml:"strategy" name:"strategy" env:"GRAPEVINE_STRATEGY" default:"prefix" placeholder:"NAME" group:"routing" help:"Strategy of requests no rule matches: prefix, prefix-hash, least-request, session, round-robin, random or weighted."`
	Rules      []Rule             `yaml:"rules" name:"rule" env:"GRAPEVINE_RULES" sep:" " placeholder:"RULE" group:"routing" help:"Strategy for some requests: strategy=NAME[,model=M][,path=PREFIX][,header=NAME[:VALUE]]. Repeatable; the first match wins."`
	WorkWeight float64            `yaml:"work_weight" name:"work-weight" env:"GRAPEVINE_WORK_WEIGHT" default:"100" placeholder:"W" group:"routing" help:"What a prompt token to be computed costs against one already queued, while a request waits no longer than long prompts compute anyway (a second copy of a prefix evicts another one). 1: never wait for a cache."`
	Epsilon    float64            `yaml:"epsilon" name:"epsilon" env:"GRAPEVINE_EPSILON" default:"0.25" placeholder:"E" group:"routing" help:"Slack of the bounded-load test: a backend is a hash candidate while its queue is at most (1+E) times the mean."`
	Weights    map[string]float64 `yaml:"weights" name:"weight" env:"GRAPEVINE_WEIGHTS" mapsep:"," placeholder:"SCORER=W" group:"routing" help:"Scorers of the weighted strategy."`
	HashBlocks int                `yaml:"hash_blocks" name:"hash-blocks" env:"GRAPEVINE_HASH_BLOCKS" default:"16" placeholder:"N" group:"routing" help:"Leading blocks that the prefix-hash strategy hashes: about 2k tokens."`
	BlockBytes int                `yaml:"block_bytes" name:"block-bytes" env:"GRAPEVINE_BLOCK_BYTES" default:"512" placeholder:"BYTES" group:"routing" help:"Prompt bytes per block. Must be equal on every node of a fleet."`
	Secret     string             `yaml:"secret" name:"secret" env:"GRAPEVINE_SECRET" placeholder:"TEXT" group:"routing" help:"Key of the prompt hashes, at least 16 bytes, equal on every node of a fleet. Random if neither it nor --secret-file is given. Prefer --secret-file: a flag is visible in the process list."`
	SecretFile string             `yaml:"secret_file" name:"secret-file" env:"GRAPEVINE_SECRET_FILE" placeholder:"FILE" group:"routing" help:"File that holds the secret."`
	HotWarmUp  bool               `yaml:"hot_warm_up" name:"hot-warm-up" env:"GRAPEVINE_HOT_WARM_UP" default:"false" group:"routing" help:"Have an engine that is to hold a hot prefix compute it before prompts come, also before the one that it replaces is drained: a prompt that begins with it is sent there for one token. A few prompts are kept in memory for that."`
	TreeBudget Bytes              `yaml:"tree_budget" name:"tree-budget" env:"GRAPEVINE_TREE_BUDGET" default:"256MiB" placeholder:"BYTES" group:"routing" help:"Memory for what is known about the engines' caches. Held."`
	Horizon    time.Duration      `yaml:"horizon" name:"horizon" env:"GRAPEVINE_HORIZON" default:"10m" placeholder:"DURATION" group:"routing" help:"Age at which an untouched prefix is first believed evicted; learned per engine from then on."`

	Join            []string      `yaml:"join" name:"join" env:"GRAPEVINE_JOIN" sep:" " placeholder:"ADDR" group:"fleet" help:"Where other nodes are: HOST[:PORT] or dns:NAME[:PORT] (every address of the name, resolved again and again), srv:_SERVICE._tcp.NAME, or file:PATH (an address a line, watched). Repeatable; may name this node too."`
	Gossip          string        `yaml:"gossip" name:"gossip" env:"GRAPEVINE_GOSSIP" placeholder:"ADDR" group:"fleet" help:"Address other nodes reach this one at, UDP and TCP; :7946 with --join or --founder. Without all three there is no gossip."`
	GossipAdvertise string        `yaml:"gossip_advertise" name:"gossip-advertise" env:"GRAPEVINE_GOSSIP_ADVERTISE" placeholder:"ADDR" group:"fleet" help:"The same as others see it, if that differs: HOST:PORT."`
	Cluster         string        `yaml:"cluster" name:"cluster" env:"GRAPEVINE_CLUSTER" default:"grapevine" placeholder:"NAME" group:"fleet" help:"Name of the fleet. Nodes of another one are refused."`
	GossipKeyFile   string        `yaml:"gossip_key_file" name:"gossip-key-file" env:"GRAPEVINE_GOSSIP_KEY_FILE" placeholder:"FILE" group:"fleet" help:"Keys that admit to the fleet and encrypt what nodes tell each other; made by grapevine keys generate, rewritten by grapevine keys install, use and remove."`
	GossipInsecure  bool          `yaml:"gossip_insecure" name:"gossip-insecure" env:"GRAPEVINE_GOSSIP_INSECURE" default:"false" group:"fleet" help:"Gossip without a key, on a network where everybody may be a node."`
	GossipCert      string        `yaml:"gossip_cert" reload:"file" name:"gossip-cert" env:"GRAPEVINE_GOSSIP_CERT" placeholder:"FILE" group:"fleet" help:"PEM certificate of this node for the streams between nodes, instead of one derived from the key."`
	GossipCertKey   string        `yaml:"gossip_cert_key" reload:"file" name:"gossip-cert-key" env:"GRAPEVINE_GOSSIP_CERT_KEY" placeholder:"FILE" group:"fleet" help:"PEM private key of --gossip-cert."`
	GossipCA        string        `yaml:"gossip_ca" name:"gossip-ca" env:"GRAPEVINE_GOSSIP_CA" placeholder:"FILE" group:"fleet" help:"PEM roots that the other nodes' certificates come from."`
	DataDir         string        `yaml:"data_dir" name:"data-dir" env:"GRAPEVINE_DATA_DIR" placeholder:"DIR" group:"fleet" help:"Where this node keeps what the fleet has agreed on: backends, rules, hot prefixes. Empty: in memory; a node of a fleet then follows the others and never votes."`
	Founders        []string      `yaml:"founders" name:"founder" env:"GRAPEVINE_FOUNDERS" sep:" " placeholder:"HOST:PORT" group:"fleet" help:"Address between nodes of each node that founds the fleet, this one included: 1, 3 or 5, the same list on each of them. They wait for each other, and found exactly one fleet in any order of starts. Other nodes only join. Repeatable."`
	Voters          int           `yaml:"voters" name:"voters" env:"GRAPEVINE_VOTERS" default:"3" placeholder:"N" group:"fleet" help:"How many nodes vote, 3 or 5: with 3 one may fail at a time, with 5 two. The others follow."`
	GossipBudget    Bytes         `yaml:"gossip_budget" name:"gossip-budget" env:"GRAPEVINE_GOSSIP_BUDGET" default:"16MiB" placeholder:"BYTES" group:"fleet" help:"What this node sends to all others together in a second, at most. Beyond it the least valuable news are left out, and counted."`
	WarmDeadline    time.Duration `yaml:"warm_deadline" name:"warm-deadline" env:"GRAPEVINE_WARM_DEADLINE" default:"10s" placeholder:"DURATION" group:"fleet" help:"How long a node that starts waits for what the others know before it asks for traffic without it."`

	MaxBody        Bytes `yaml:"max_body" name:"max-body" env:"GRAPEVINE_MAX_BODY" default:"32MiB" placeholder:"BYTES" group:"limits" help:"Largest request body; more is answered 413."`
	MaxBodyMemory  Bytes `yaml:"max_body_memory" name:"max-body-memory" env:"GRAPEVINE_MAX_BODY_MEMORY" default:"0" placeholder:"BYTES" group:"limits" help:"Memory for all request bodies together; a request that does not fit is answered 503 with Retry-After. At least 3 times max_body. 0: a quarter of the memory of the cgroup, or of the machine."`
	MaxHeader      Bytes `yaml:"max_header" name:"max-header" env:"GRAPEVINE_MAX_HEADER" default:"16KiB" placeholder:"BYTES" group:"limits" help:"Largest request head; more is answered 431. At least 16KiB; every connection keeps a buffer of this size."`
	MaxConnections int   `yaml:"max_connections" name:"max-connections" env:"GRAPEVINE_MAX_CONNECTIONS" default:"262144" placeholder:"N" group:"limits" help:"Client connections at once. Lowered at the start, with a warning, to what the limit of open files allows."`
	MaxIdle        int   `yaml:"max_idle" reload:"yes" name:"max-idle" env:"GRAPEVINE_MAX_IDLE" default:"512" placeholder:"N" group:"limits" help:"Idle connections kept to one engine."`
	MaxAttempts    int   `yaml:"max_attempts" reload:"yes" name:"max-attempts" env:"GRAPEVINE_MAX_ATTEMPTS" default:"3" placeholder:"N" group:"limits" help:"Engines tried for one request before its first byte has gone to the client."`

	ReadTimeout            time.Duration `yaml:"read_timeout" name:"read-timeout" env:"GRAPEVINE_READ_TIMEOUT" default:"30s" placeholder:"DURATION" group:"timeouts" help:"For a request to arrive: its head with the first 256 KiB of its body, and then each further 256 KiB or the rest."`
	KeepAlive              time.Duration `yaml:"keep_alive" name:"keep-alive" env:"GRAPEVINE_KEEP_ALIVE" default:"6m" placeholder:"DURATION" group:"timeouts" help:"How long an idle client connection is kept: above the balancer's own limit (NLB: 350 s), so that it is never this side that closes under a request."`
	ConnectTimeout         time.Duration `yaml:"connect_timeout" reload:"yes" name:"connect-timeout" env:"GRAPEVINE_CONNECT_TIMEOUT" default:"2s" placeholder:"DURATION" group:"timeouts" help:"To open a connection to an engine, TLS included."`
	FirstByteTimeout       time.Duration `yaml:"first_byte_timeout" reload:"yes" name:"first-byte-timeout" env:"GRAPEVINE_FIRST_BYTE_TIMEOUT" default:"10m" placeholder:"DURATION" group:"timeouts" help:"For the answer to a request that is not streamed to begin: queueing, prefill and the whole generation."`
	StreamFirstByteTimeout time.Duration `yaml:"stream_first_byte_timeout" reload:"yes" name:"stream-first-byte-timeout" env:"GRAPEVINE_STREAM_FIRST_BYTE_TIMEOUT" default:"5m" placeholder:"DURATION" group:"timeouts" help:"For a stream to begin: queueing and prefill."`
	IdleTimeout            time.Duration `yaml:"idle_timeout" reload:"yes" name:"idle-timeout" env:"GRAPEVINE_IDLE_TIMEOUT" default:"2m" placeholder:"DURATION" group:"timeouts" help:"Longest silence inside an answer that has begun. A stream that keeps talking is never cut."`
	HeaderHold             time.Duration `yaml:"header_hold" reload:"yes" name:"header-hold" env:"GRAPEVINE_HEADER_HOLD" default:"15s" placeholder:"DURATION" group:"timeouts" help:"How long the head of a stream waits for its first body byte: until the client has seen a byte, another engine can still take over. 0 passes it on at once."`
	WriteTimeout           time.Duration `yaml:"write_timeout" reload:"yes" name:"write-timeout" env:"GRAPEVINE_WRITE_TIMEOUT" default:"1m" placeholder:"DURATION" group:"timeouts" help:"For one write to a client that does not read."`
	UpstreamIdle           time.Duration `yaml:"upstream_idle" name:"upstream-idle" env:"GRAPEVINE_UPSTREAM_IDLE" default:"4s" placeholder:"DURATION" group:"timeouts" help:"How long an idle connection to an engine is kept: below the engine's own limit (vLLM: 5 s)."`
	DrainGrace             time.Duration `yaml:"drain_grace" reload:"yes" name:"drain-grace" env:"GRAPEVINE_DRAIN_GRACE" default:"5s" placeholder:"DURATION" group:"timeouts" help:"After SIGTERM: how long /readyz answers 503 while everything else goes on, so that the balancer can notice. SIGINT skips it."`
	DrainClose             time.Duration `yaml:"drain_close" reload:"yes" name:"drain-close" env:"GRAPEVINE_DRAIN_CLOSE" default:"1s" placeholder:"DURATION" group:"timeouts" help:"How long answers then carry Connection: close before new connections are refused."`
	DrainTimeout           time.Duration `yaml:"drain_timeout" reload:"yes" name:"drain-timeout" env:"GRAPEVINE_DRAIN_TIMEOUT" default:"5m" placeholder:"DURATION" group:"timeouts" help:"How long running requests may then take to end before they are cut."`

	LogLevel  string `yaml:"log_level" reload:"yes" name:"log-level" env:"GRAPEVINE_LOG_LEVEL" default:"info" placeholder:"LEVEL" group:"watching" help:"debug, info, warn or error."`
	LogFormat string `yaml:"log_format" name:"log-format" env:"GRAPEVINE_LOG_FORMAT" default:"auto" placeholder:"FORMAT" group:"watching" help:"json, console, or auto: console on a terminal, else json."`
	Pprof     bool   `yaml:"pprof" name:"pprof" env:"GRAPEVINE_PPROF" default:"false" group:"watching" help:"Serve /debug/pprof on the admin API."`
}

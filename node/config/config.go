// Package config holds the settings of a node: their table, the YAML file, defaults and checks.
package config

import (
	"io"
	"net"
	"time"

	"github.com/rs/zerolog"
)

// Inherited is what a process has from the one that started it. Its zero value is nothing.
type Inherited struct {
	// Sockets that replace Listen, Admin and MetricsListen; the started node closes them.
	Data, Admin, Metrics net.Listener
	SocketUnit           bool // the service manager opened Data, whatever Listen says
	// TakesOver: another process of this node serves until Start has returned, so the node warms up first.
	TakesOver    bool
	RandomSecret []byte // used where no secret is configured; nil: the node draws one
}

// Config configures one node; its struct tags define all settings (see Settings). Start from
// Default.
type Config struct {
	Log zerolog.Logger `yaml:"-"`
	// LogSwitch, if not nil, is that of Log; Reload sets it.
	LogSwitch *LogSwitch `yaml:"-"`
	Version   string     `yaml:"-"`
	// Stdout receives the lines of access_log without access_log_file; nil: none.
	Stdout io.Writer `yaml:"-"`
	// Inherited is from the service manager, or from the process that this one replaces.
	Inherited Inherited `yaml:"-"`

	Listen         string `yaml:"listen" name:"listen" env:"GRAPEVINE_LISTEN" default:":8080" placeholder:"ADDR" group:"serving" help:"Address for clients."`
	Admin          string `yaml:"admin" name:"admin" env:"GRAPEVINE_ADMIN" default:"127.0.0.1:8081" placeholder:"ADDR" group:"serving" help:"Address of the admin API and of the dashboard, /ui/. Without admin_token_file only this machine may change things there; everyone who reaches it may read backends, nodes and load."`
	AdminTokenFile string `yaml:"admin_token_file" reload:"file" name:"admin-token-file" env:"GRAPEVINE_ADMIN_TOKEN_FILE" placeholder:"FILE" group:"serving" help:"File with the token (16 bytes or more) that admin clients must send; only health, metrics and the dashboard's files need none."`
	MetricsListen  string `yaml:"metrics_listen" name:"metrics-listen" env:"GRAPEVINE_METRICS_LISTEN" placeholder:"ADDR" group:"serving" help:"Further address for /metrics, /healthz and /readyz alone, without a token."`
	NodeName       string `yaml:"node_name" name:"node-name" env:"GRAPEVINE_NODE_NAME" placeholder:"NAME" group:"serving" help:"Name of this node in logs, status and x-grapevine-node. Empty: the host name."`
	ClientsFile    string `yaml:"clients_file" reload:"file" name:"clients-file" env:"GRAPEVINE_CLIENTS_FILE" placeholder:"FILE" group:"serving" help:"Clients that may use the router, their keys and limits; read again when it changes. Empty: everybody may, without limits."`
	TLSCert        string `yaml:"tls_cert" reload:"file" name:"tls-cert" env:"GRAPEVINE_TLS_CERT" placeholder:"FILE" group:"serving" help:"PEM certificate chain; with tls_key clients connect by TLS."`
	TLSKey         string `yaml:"tls_key" reload:"file" name:"tls-key" env:"GRAPEVINE_TLS_KEY" placeholder:"FILE" group:"serving" help:"PEM private key of tls_cert."`
	ProxyProtocol  bool   `yaml:"proxy_protocol" name:"proxy-protocol" env:"GRAPEVINE_PROXY_PROTOCOL" default:"false" group:"serving" help:"Require a PROXY protocol header (v1 or v2) on every data connection, health checks included."`

	PassPaths          []string `yaml:"pass_paths" reload:"yes" name:"pass-paths" env:"GRAPEVINE_PASS_PATHS" sep:" " placeholder:"PREFIX" group:"serving" help:"Path prefix to forward although the router does not know it. The router adds no api_key there and does not read bodies. Repeatable."`
	AllowEngineControl bool     `yaml:"allow_engine_control" reload:"yes" name:"allow-engine-control" env:"GRAPEVINE_ALLOW_ENGINE_CONTROL" default:"false" group:"serving" help:"Forward the members and headers that steer engines (kv_transfer_params, bootstrap_*, ...), and unreadable bodies. Only for trusted clients."`
	ResponseHeaders    string   `yaml:"response_headers" reload:"yes" name:"response-headers" env:"GRAPEVINE_RESPONSE_HEADERS" default:"none" placeholder:"none|route|all" group:"serving" help:"x-grapevine headers on responses: none; route (rung, matched and expected tokens); all (also node and backend). Others than none reveal prompts or addresses to clients."`
	Tenant             string   `yaml:"tenant" name:"tenant" env:"GRAPEVINE_TENANT" default:"none" placeholder:"none|client|credential|header:NAME" group:"serving" help:"Clients that share no cache with others: none, each of clients_file, those of one credential, or those with one value of a header that a gateway sets. Equal on every node."`

	Backends        []Backend     `yaml:"backends" reload:"credentials" name:"backend" env:"GRAPEVINE_BACKENDS" sep:" " placeholder:"URL" group:"backends" help:"Engine: URL[,name=N][,models=A|B][,weight=W][,kv_tokens=T][,role=prefill|decode][,bootstrap_port=P][,labels=NAME=VALUE|NAME=VALUE][,api_key_file=F][,api_key=K][,ca_file=F][,events=off|tcp://HOST:PORT?replay=PORT&topic=PREFIX]. Repeatable."`
	BackendsFrom    []string      `yaml:"backends_from" name:"backends-from" env:"GRAPEVINE_BACKENDS_FROM" sep:" " placeholder:"SOURCE" group:"backends" help:"Source of engines: file:PATH, dns:NAME:PORT or srv:_SERVICE._tcp.NAME. The leader adds and removes engines by it. Repeatable; equal on every voter."`
	ModelsInterval  time.Duration `yaml:"models_interval" reload:"yes" name:"models-interval" env:"GRAPEVINE_MODELS_INTERVAL" default:"30s" placeholder:"DURATION" group:"backends" help:"How often the router reads /v1/models of each engine. 0: never, any engine serves any model; after a reload, those that it listed last."`
	MetricsInterval time.Duration `yaml:"metrics_interval" reload:"yes" name:"metrics-interval" env:"GRAPEVINE_METRICS_INTERVAL" default:"5s" placeholder:"DURATION" group:"backends" help:"How often the router reads /metrics of each engine: its requests, KV cache and, of vLLM, prefill rate. Less often in large fleets. 0: never."`
	LoadsInterval   time.Duration `yaml:"loads_interval" reload:"yes" name:"loads-interval" env:"GRAPEVINE_LOADS_INTERVAL" default:"1s" placeholder:"DURATION" group:"backends" help:"How often the router reads SGLang's /v1/loads: its queue in tokens and prefill rate. Less often in large fleets. 0: never."`
	Events          string        `yaml:"events" name:"events" env:"GRAPEVINE_EVENTS" default:"auto" placeholder:"auto|off" group:"backends" help:"Follow the cache events that vLLM and SGLang publish (--kv-events-config): auto asks engines for them; off. They carry prompts in clear."`

	ProbeInterval time.Duration `yaml:"probe_interval" reload:"yes" name:"probe-interval" env:"GRAPEVINE_PROBE_INTERVAL" default:"1s" placeholder:"DURATION" group:"backends" help:"Time between two probes of an engine by one node; three nodes probe each engine."`
	ProbeTimeout  time.Duration `yaml:"probe_timeout" reload:"yes" name:"probe-timeout" env:"GRAPEVINE_PROBE_TIMEOUT" default:"1.5s" placeholder:"DURATION" group:"backends" help:"Longest wait for the answer to a probe."`
	ProbePath     string        `yaml:"probe_path" reload:"yes" name:"probe-path" env:"GRAPEVINE_PROBE_PATH" default:"/health" placeholder:"PATH" group:"backends" help:"Path of probes; /v1/models where it is missing. \"-\": no probes, requests alone decide."`
	SlowStart     time.Duration `yaml:"slow_start" reload:"yes" name:"slow-start" env:"GRAPEVINE_SLOW_START" default:"30s" placeholder:"DURATION" group:"backends" help:"Time in which the share of a new or returning engine grows to normal. 0: at once."`

	Strategy   string             `yaml:"strategy" reload:"yes" name:"strategy" env:"GRAPEVINE_STRATEGY" default:"prefix" placeholder:"NAME" group:"routing" help:"Strategy of requests that no rule matches: prefix, prefix-hash, least-request, session, round-robin, random or weighted."`
	Rules      []Rule             `yaml:"rules" name:"rule" env:"GRAPEVINE_RULES" sep:" " placeholder:"RULE" group:"routing" help:"What becomes of some requests: [name=N][,model=M][,path=PREFIX][,header=NAME[:VALUE]][,share=P%][,session=FROM][,to=MODEL][,pool=LABEL|LABEL][,fallback=LABEL|any][,strategy=NAME]. The first match wins. Repeatable."`
	Zone       string             `yaml:"zone" reload:"yes" name:"zone" env:"GRAPEVINE_ZONE" placeholder:"NAME" group:"routing" help:"Where this router is. Engines labelled with another zone cost zone_cost more. Empty: no engine does."`
	ZoneCost   time.Duration      `yaml:"zone_cost" reload:"yes" name:"zone-cost" env:"GRAPEVINE_ZONE_COST" default:"20ms" placeholder:"DURATION" group:"routing" help:"Price of an engine in another zone, for strategy prefix: how much later the near one may answer. 0: all zones are equal."`
	Weights    map[string]float64 `yaml:"weights" reload:"yes" name:"weight" env:"GRAPEVINE_WEIGHTS" placeholder:"SCORER=W" group:"routing" help:"Weight of a scorer of the weighted strategy."`
	HashBlocks int                `yaml:"hash_blocks" reload:"yes" name:"hash-blocks" env:"GRAPEVINE_HASH_BLOCKS" default:"16" placeholder:"N" group:"routing" help:"Leading blocks that the prefix-hash strategy hashes."`
	BlockBytes int                `yaml:"block_bytes" name:"block-bytes" env:"GRAPEVINE_BLOCK_BYTES" default:"512" placeholder:"BYTES" group:"routing" help:"Prompt bytes per block. Equal on every node."`
	Secret     string             `yaml:"secret" name:"secret" env:"GRAPEVINE_SECRET" placeholder:"TEXT" group:"routing" help:"Key of the prompt hashes, 16 bytes or more, equal on every node. Prefer secret_file: a flag is visible to every user."`
	SecretFile string             `yaml:"secret_file" name:"secret-file" env:"GRAPEVINE_SECRET_FILE" placeholder:"FILE" group:"routing" help:"File with the secret. A node without a fleet and a secret makes a random one."`
	TreeBudget Bytes              `yaml:"tree_budget" name:"tree-budget" env:"GRAPEVINE_TREE_BUDGET" default:"256MiB" placeholder:"BYTES" group:"routing" help:"Memory for the knowledge about caches."`
	Horizon    time.Duration      `yaml:"horizon" name:"horizon" env:"GRAPEVINE_HORIZON" default:"10m" placeholder:"DURATION" group:"routing" help:"First guess of the age at which engines evict an unused prefix; learned afterwards."`

	Join            []string      `yaml:"join" name:"join" env:"GRAPEVINE_JOIN" sep:" " placeholder:"ADDR" group:"fleet" help:"Other nodes: HOST[:PORT], dns:NAME[:PORT], srv:_SERVICE._tcp.NAME or file:PATH (an address a line). May include this node. Repeatable."`
	Gossip          string        `yaml:"gossip" name:"gossip" env:"GRAPEVINE_GOSSIP" placeholder:"ADDR" group:"fleet" help:"Address for other nodes, UDP and TCP; :7946 in a fleet. Without it, join and founders the node is alone."`
	GossipAdvertise string        `yaml:"gossip_advertise" name:"gossip-advertise" env:"GRAPEVINE_GOSSIP_ADVERTISE" placeholder:"ADDR" group:"fleet" help:"HOST:PORT at which others reach gossip, if it differs."`
	Cluster         string        `yaml:"cluster" name:"cluster" env:"GRAPEVINE_CLUSTER" default:"grapevine" placeholder:"NAME" group:"fleet" help:"Name of the fleet. It refuses nodes of others."`
	GossipKeyFile   string        `yaml:"gossip_key_file" name:"gossip-key-file" env:"GRAPEVINE_GOSSIP_KEY_FILE" placeholder:"FILE" group:"fleet" help:"Keys that admit nodes and encrypt their traffic, from grapevine keys generate. The node rewrites it."`
	GossipInsecure  bool          `yaml:"gossip_insecure" name:"gossip-insecure" env:"GRAPEVINE_GOSSIP_INSECURE" default:"false" group:"fleet" help:"Gossip without a key: every host of the network may join."`
	GossipCert      string        `yaml:"gossip_cert" reload:"file" name:"gossip-cert" env:"GRAPEVINE_GOSSIP_CERT" placeholder:"FILE" group:"fleet" help:"PEM certificate of this node for other nodes. Empty: derived from the key."`
	GossipCertKey   string        `yaml:"gossip_cert_key" reload:"file" name:"gossip-cert-key" env:"GRAPEVINE_GOSSIP_CERT_KEY" placeholder:"FILE" group:"fleet" help:"PEM private key of gossip_cert."`
	GossipCA        string        `yaml:"gossip_ca" name:"gossip-ca" env:"GRAPEVINE_GOSSIP_CA" placeholder:"FILE" group:"fleet" help:"PEM roots of the other nodes' certificates."`
	DataDir         string        `yaml:"data_dir" name:"data-dir" env:"GRAPEVINE_DATA_DIR" placeholder:"DIR" group:"fleet" help:"Directory for the agreed state. Empty: in memory, and a node of a fleet never votes."`
	Founders        []string      `yaml:"founders" name:"founder" env:"GRAPEVINE_FOUNDERS" sep:" " placeholder:"HOST:PORT" group:"fleet" help:"Address of a node that founds the fleet: 1, 3 or 5 in all, this one included, the same list on each. Repeatable."`
	Voters          int           `yaml:"voters" name:"voters" env:"GRAPEVINE_VOTERS" default:"3" placeholder:"N" group:"fleet" help:"Number of voting nodes, 3 or 5."`
	GossipBudget    Bytes         `yaml:"gossip_budget" name:"gossip-budget" env:"GRAPEVINE_GOSSIP_BUDGET" default:"16MiB" placeholder:"BYTES" group:"fleet" help:"Most bytes per second to all other nodes together. The node drops and counts the rest."`
	WarmDeadline    time.Duration `yaml:"warm_deadline" name:"warm-deadline" env:"GRAPEVINE_WARM_DEADLINE" default:"10s" placeholder:"DURATION" group:"fleet" help:"Longest wait for the other nodes' knowledge at the start."`

	MaxBody        Bytes `yaml:"max_body" reload:"yes" name:"max-body" env:"GRAPEVINE_MAX_BODY" default:"32MiB" placeholder:"BYTES" group:"limits" help:"Largest request body; a larger one gets 413."`
	MaxBodyMemory  Bytes `yaml:"max_body_memory" reload:"yes" name:"max-body-memory" env:"GRAPEVINE_MAX_BODY_MEMORY" default:"0" placeholder:"BYTES" group:"limits" help:"Memory for all request bodies; what does not fit gets 503. At least 3 times max_body. 0: a quarter of the memory."`
	MaxHeader      Bytes `yaml:"max_header" reload:"yes" name:"max-header" env:"GRAPEVINE_MAX_HEADER" default:"16KiB" placeholder:"BYTES" group:"limits" help:"Largest request head; a larger one gets 431. Every connection keeps a buffer of this size."`
	MaxConnections int   `yaml:"max_connections" reload:"yes" name:"max-connections" env:"GRAPEVINE_MAX_CONNECTIONS" default:"262144" placeholder:"N" group:"limits" help:"Most client connections. The limit of open files may lower it."`
	MaxIdle        int   `yaml:"max_idle" reload:"yes" name:"max-idle" env:"GRAPEVINE_MAX_IDLE" default:"512" placeholder:"N" group:"limits" help:"Idle connections kept to one engine."`
	MaxAttempts    int   `yaml:"max_attempts" reload:"yes" name:"max-attempts" env:"GRAPEVINE_MAX_ATTEMPTS" default:"3" placeholder:"N" group:"limits" help:"Engines tried for one request before its first byte."`

	QueueRequests int           `yaml:"queue_requests" reload:"yes" name:"queue-requests" env:"GRAPEVINE_QUEUE_REQUESTS" default:"0" placeholder:"N" group:"queue" help:"Requests that may wait at the router while all engines are full, in a fair order; beyond them 429. 0: no queue, requests wait inside engines. Equal on every node."`
	QueueBytes    Bytes         `yaml:"queue_bytes" reload:"yes" name:"queue-bytes" env:"GRAPEVINE_QUEUE_BYTES" default:"0" placeholder:"BYTES" group:"queue" help:"Bytes of the bodies of waiting requests; beyond them 429. 0: half of max_body_memory."`
	QueueTimeout  time.Duration `yaml:"queue_timeout" reload:"yes" name:"queue-timeout" env:"GRAPEVINE_QUEUE_TIMEOUT" default:"30s" placeholder:"DURATION" group:"queue" help:"Longest wait of a request in the queue, over all its attempts; then 429."`
	QueueTTFT     time.Duration `yaml:"queue_ttft" reload:"yes" name:"queue-ttft" env:"GRAPEVINE_QUEUE_TTFT" default:"1s" placeholder:"DURATION" group:"queue" help:"An engine is full while its outstanding prefill takes this long. 0: no such bound."`
	QueueWaiting  int           `yaml:"queue_waiting" reload:"yes" name:"queue-waiting" env:"GRAPEVINE_QUEUE_WAITING" default:"4" placeholder:"N" group:"queue" help:"An engine is full while so many requests wait there for their first token. 0: no such bound."`
	QueueInFlight int           `yaml:"queue_in_flight" reload:"yes" name:"queue-in-flight" env:"GRAPEVINE_QUEUE_IN_FLIGHT" default:"0" placeholder:"N" group:"queue" help:"An engine is full while it has so many requests of the whole fleet. 0: no such bound."`

	ReadTimeout            time.Duration `yaml:"read_timeout" reload:"yes" name:"read-timeout" env:"GRAPEVINE_READ_TIMEOUT" default:"30s" placeholder:"DURATION" group:"timeouts" help:"Longest wait for the head and the first 256 KiB of a body, and for each further 256 KiB."`
	KeepAlive              time.Duration `yaml:"keep_alive" reload:"yes" name:"keep-alive" env:"GRAPEVINE_KEEP_ALIVE" default:"6m" placeholder:"DURATION" group:"timeouts" help:"Life of an idle client connection. Keep it above the balancer's limit (NLB: 350 s)."`
	ConnectTimeout         time.Duration `yaml:"connect_timeout" reload:"yes" name:"connect-timeout" env:"GRAPEVINE_CONNECT_TIMEOUT" default:"2s" placeholder:"DURATION" group:"timeouts" help:"Longest wait for a connection to an engine, TLS included."`
	FirstByteTimeout       time.Duration `yaml:"first_byte_timeout" reload:"yes" name:"first-byte-timeout" env:"GRAPEVINE_FIRST_BYTE_TIMEOUT" default:"10m" placeholder:"DURATION" group:"timeouts" help:"Longest wait for the first byte of an answer that is not streamed."`
	StreamFirstByteTimeout time.Duration `yaml:"stream_first_byte_timeout" reload:"yes" name:"stream-first-byte-timeout" env:"GRAPEVINE_STREAM_FIRST_BYTE_TIMEOUT" default:"5m" placeholder:"DURATION" group:"timeouts" help:"Longest wait for the first byte of a stream."`
	IdleTimeout            time.Duration `yaml:"idle_timeout" reload:"yes" name:"idle-timeout" env:"GRAPEVINE_IDLE_TIMEOUT" default:"2m" placeholder:"DURATION" group:"timeouts" help:"Longest silence inside an answer."`
	HeaderHold             time.Duration `yaml:"header_hold" reload:"yes" name:"header-hold" env:"GRAPEVINE_HEADER_HOLD" default:"15s" placeholder:"DURATION" group:"timeouts" help:"How long a stream's head waits for its first byte, so that another engine can still take over. 0: not at all."`
	WriteTimeout           time.Duration `yaml:"write_timeout" reload:"yes" name:"write-timeout" env:"GRAPEVINE_WRITE_TIMEOUT" default:"1m" placeholder:"DURATION" group:"timeouts" help:"Longest write to a client that does not read."`
	UpstreamIdle           time.Duration `yaml:"upstream_idle" name:"upstream-idle" env:"GRAPEVINE_UPSTREAM_IDLE" default:"4s" placeholder:"DURATION" group:"timeouts" help:"Life of an idle connection to an engine. Keep it below the engine's limit (vLLM: 5 s)."`
	DrainGrace             time.Duration `yaml:"drain_grace" reload:"yes" name:"drain-grace" env:"GRAPEVINE_DRAIN_GRACE" default:"5s" placeholder:"DURATION" group:"timeouts" help:"After SIGTERM: how long /readyz answers 503 while the node still serves."`
	DrainClose             time.Duration `yaml:"drain_close" reload:"yes" name:"drain-close" env:"GRAPEVINE_DRAIN_CLOSE" default:"1s" placeholder:"DURATION" group:"timeouts" help:"How long answers then carry Connection: close."`
	DrainTimeout           time.Duration `yaml:"drain_timeout" reload:"yes" name:"drain-timeout" env:"GRAPEVINE_DRAIN_TIMEOUT" default:"5m" placeholder:"DURATION" group:"timeouts" help:"How long running requests then may take."`

	LogLevel      string `yaml:"log_level" reload:"yes" name:"log-level" env:"GRAPEVINE_LOG_LEVEL" default:"info" placeholder:"LEVEL" group:"watching" help:"debug, info, warn or error."`
	LogFormat     string `yaml:"log_format" reload:"yes" name:"log-format" env:"GRAPEVINE_LOG_FORMAT" default:"auto" placeholder:"FORMAT" group:"watching" help:"json, console, or auto: console on a terminal."`
	AccessLog     string `yaml:"access_log" reload:"yes" name:"access-log" env:"GRAPEVINE_ACCESS_LOG" default:"off" placeholder:"off|errors|sample:SHARE|all" group:"watching" help:"Log a line of JSON for requests: off; errors (5xx, 429, answers broken off); sample:0.01 (that share and all errors); all. Lines hold no prompts."`
	AccessLogFile string `yaml:"access_log_file" reload:"yes" name:"access-log-file" env:"GRAPEVINE_ACCESS_LOG_FILE" placeholder:"FILE" group:"watching" help:"File for these lines, opened again at each reload. Empty: stdout."`

	OTLPEndpoint string `yaml:"otlp_endpoint" reload:"yes" name:"otlp-endpoint" env:"GRAPEVINE_OTLP_ENDPOINT" placeholder:"URL" group:"watching" help:"OpenTelemetry collector that gets a span of each traced request, by OTLP over HTTP: http://127.0.0.1:4318. Spans hold no prompts. Empty: no tracing."`
	// OTLPHeadersFile: see traces.ParseHeaders.
	OTLPHeadersFile string  `yaml:"otlp_headers_file" reload:"yes" name:"otlp-headers-file" env:"GRAPEVINE_OTLP_HEADERS_FILE" placeholder:"FILE" group:"watching" help:"File with headers for the collector, such as a credential: lines of Name: value; each reload reads it again."`
	TraceShare      float64 `yaml:"trace_share" reload:"yes" name:"trace-share" env:"GRAPEVINE_TRACE_SHARE" default:"0.1" placeholder:"SHARE" group:"watching" help:"Share, 0 to 1, of the requests without a traceparent that are traced. The others follow their traceparent."`

	GPUHourPrice float64 `yaml:"gpu_hour_price" reload:"yes" name:"gpu-hour-price" env:"GRAPEVINE_GPU_HOUR_PRICE" default:"0" placeholder:"PRICE" group:"watching" help:"Price of an hour of one engine, all its GPUs together, for the cost of each client. 0: no costs."`

	DoctorSamples int `yaml:"doctor_samples" reload:"yes" name:"doctor-samples" env:"GRAPEVINE_DOCTOR_SAMPLES" default:"16" placeholder:"N" group:"watching" help:"Requests a second at most whose prompts the doctor compares, by hashes and lengths, without text. 0: none."`

	Pprof bool `yaml:"pprof" reload:"yes" name:"pprof" env:"GRAPEVINE_PPROF" default:"false" group:"watching" help:"Serve /debug/pprof on the admin API."`
}

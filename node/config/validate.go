package config

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"grapevine.example/gossip/member"
	"grapevine.example/node/accesslog"
	"grapevine.example/node/traces"
	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

// minSecret is 128 bits, if random, which resist a search.
const minSecret = 16

const MaxSecretFile = 4096

// NoProbes as the probe path turns probes off.
const NoProbes = "-"

// Validate returns all mistakes as joined *Error, located by file and lines of Load, and fills in
// missing names and weights.
func (c *Config) Validate(file string, lines map[string]int) error {
	var errs []error
	bad := complain(func(key, remedy, format string, args ...any) {
		e := &Error{Key: key, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
		if n, ok := lines[key]; ok {
			e.File, e.Line = file, n
		}
		errs = append(errs, e)
	})
	c.checkServing(bad)
	c.checkBackends(bad)
	c.checkRouting(bad)
	c.checkAgreement(bad)
	c.checkFleet(bad)
	c.checkAmounts(bad)
	c.checkQueue(bad)
	if _, err := ParseLevel(c.LogLevel); err != nil {
		bad("log_level", "want debug, info, warn or error", "%q is no level", c.LogLevel)
	}
	if _, err := accesslog.Parse(c.AccessLog); err != nil {
		bad("access_log", err.Error(), "%q cannot be used", c.AccessLog)
	}
	bad.when(!Finite(c.GPUHourPrice) || c.GPUHourPrice < 0, "gpu_hour_price", "write a price such as 2.5, or 0 for no costs", "%v is not a number from 0 up", c.GPUHourPrice)
	bad.when(c.DoctorSamples < 0 || c.DoctorSamples > maxDoctorSamples, "doctor_samples", fmt.Sprintf("write 0 (none) to %d", maxDoctorSamples), "%d is out of range", c.DoctorSamples)
	switch c.LogFormat {
	case "json", "console", "auto":
	default:
		bad("log_format", "want json, console or auto", "%q is no format", c.LogFormat)
	}
	return errors.Join(errs...)
}

// maxDoctorSamples costs an eighth of a core with long prompts.
const maxDoctorSamples = 1000

type complain func(key, remedy, format string, args ...any)

func (bad complain) when(wrong bool, key, remedy, format string, args ...any) {
	if wrong {
		bad(key, remedy, format, args...)
	}
}

func (c *Config) checkServing(bad complain) {
	bad.when(c.Listen == "", "listen", "write :8080", "is empty")
	bad.when(c.Admin == "", "admin", "write 127.0.0.1:8081", "is empty")
	bad.when((c.TLSCert == "") != (c.TLSKey == ""), "tls_cert", "give both or neither", "tls_cert and tls_key belong together")
	for _, p := range c.PassPaths {
		if err := proxy.CheckPassPath(p); err != nil {
			bad("pass_paths", "write paths such as /classify", "%v", err)
		}
	}
	if _, err := proxy.ParseResponseHeaders(c.ResponseHeaders); err != nil {
		bad("response_headers", "want none, route or all", "%q is unknown", c.ResponseHeaders)
	}
	tenant, err := proxy.ParseTenant(c.Tenant)
	switch {
	case err != nil:
		bad("tenant", "want none, client, credential or header:NAME, a header that is passed on to engines", "%q cannot be used", c.Tenant)
	case tenant.ByClient() && c.ClientsFile == "":
		bad("tenant", "set clients_file, or write credential", "client needs a list of clients")
	case tenant.ByCredential() && c.ClientsFile != "":
		bad("tenant", "write client", "credential does not go with clients_file, which takes the credentials")
	}
	if c.OTLPEndpoint != "" {
		_, err := traces.URL(c.OTLPEndpoint)
		bad.when(err != nil, "otlp_endpoint", "write the base URL of a collector, such as http://127.0.0.1:4318", "%q cannot be used", c.OTLPEndpoint)
	}
	bad.when(c.OTLPHeadersFile != "" && c.OTLPEndpoint == "", "otlp_headers_file", "set otlp_endpoint, too", "is for a collector, and there is none")
	bad.when(!(c.TraceShare >= 0 && c.TraceShare <= 1), "trace_share", "write a number from 0 to 1", "%v is no share", c.TraceShare)
	bad.when(!HeaderWord(c.NodeName), "node_name", "write one word of visible ASCII: it goes into a response header", "%q cannot be used", c.NodeName)
}

func (c *Config) checkBackends(bad complain) {
	for i, entry := range c.BackendsFrom {
		if _, err := ParseSource(entry); err != nil {
			bad("backends_from", "write file:PATH, dns:NAME:PORT or srv:_SERVICE._tcp.NAME", "entry %d, %q: %v", i+1, entry, err)
		}
	}
	var list []Backend
	for i := range c.Backends {
		each, err := c.Backends[i].Each()
		if err != nil {
			bad("backends", "", "%v", err)
		}
		list = append(list, each...)
	}
	c.Backends = list
	names, urls := make(map[string]string, len(c.Backends)), make(map[string]string, len(c.Backends))
	for i := range c.Backends {
		b := &c.Backends[i]
		if other, ok := names[b.Name]; ok {
			bad("backends", "name them apart with name", "two backends are called %s (%s and %s)", b.Name, other, b.URL)
		}
		names[b.Name] = b.URL
		url, err := raftstore.NormalURL(b.URL)
		switch other, ok := urls[url]; {
		case err != nil:
			bad("backends", "", "url of %s: %v", b.Name, err)
		case ok:
			bad("backends", "list every engine once", "%s and %s are one engine, %s", other, b.Name, b.URL)
		default:
			if err := b.Spec().Check(); err != nil {
				bad("backends", "shorten it, or leave it out: of models the engine is asked then", "%v", err)
			}
		}
		urls[url] = b.Name
	}
	bad.when(c.Events != EventsAuto && c.Events != EventsOff, "events", "write auto or off; an address belongs to a backend", "%q is neither", c.Events)
	bad.when(len(c.Backends) > raftstore.MaxBackends, "backends", "split them over several fleets", "%d are more than %d", len(c.Backends), raftstore.MaxBackends)
}

func (c *Config) checkRouting(bad complain) {
	bad.when(!slices.Contains(policy.Strategies(), c.Strategy), "strategy", knownStrategies(c.Strategy), "%q is unknown", c.Strategy)
	if i, err := rules.Check(Specs(c.Rules), policy.Strategies()); err != nil {
		bad("rules", "", "rule %d: %v", i, err)
	}
	bad.when(c.HashBlocks <= 0, "hash_blocks", "16 is the default", "%d is not positive", c.HashBlocks)
	bad.when(c.BlockBytes < 64 || c.BlockBytes > 1<<16, "block_bytes", "512 is the default", "%d is not between 64 and 65536", c.BlockBytes)
	bad.when(c.Secret != "" && c.SecretFile != "", "secret", "keep one", "secret and secret_file are both given")
	bad.when(c.Secret != "" && len(c.Secret) < minSecret, "secret", "generate one with: openssl rand -hex 32", "is shorter than %d bytes", minSecret)
	for name, w := range c.Weights {
		bad.when(!Finite(w) || w < 0, "weights", "write {prefix: 2, load: 1}", "%s: %v is not a number from 0 up", name, w)
	}
}

func (c *Config) checkAmounts(bad complain) {
	for _, d := range []struct {
		key   string
		value time.Duration
		least time.Duration
	}{
		{"models_interval", c.ModelsInterval, 0}, {"metrics_interval", c.MetricsInterval, 0}, {"loads_interval", c.LoadsInterval, 0},
		{"probe_interval", c.ProbeInterval, minProbeInterval}, {"probe_timeout", c.ProbeTimeout, time.Millisecond}, {"slow_start", c.SlowStart, 0}, {"zone_cost", c.ZoneCost, 0},
		{"drain_grace", c.DrainGrace, 0}, {"drain_close", c.DrainClose, 0},
		{"drain_timeout", c.DrainTimeout, 0}, {"header_hold", c.HeaderHold, 0}, {"write_timeout", c.WriteTimeout, 1},
		{"stream_first_byte_timeout", c.StreamFirstByteTimeout, 1},
		{"connect_timeout", c.ConnectTimeout, 1}, {"first_byte_timeout", c.FirstByteTimeout, 1}, {"idle_timeout", c.IdleTimeout, 1},
		{"read_timeout", c.ReadTimeout, 1}, {"keep_alive", c.KeepAlive, 1}, {"upstream_idle", c.UpstreamIdle, 1}, {"horizon", c.Horizon, 1},
		{"warm_deadline", c.WarmDeadline, 1},
	} {
		bad.when(d.value < d.least, d.key, "write a duration such as 30s", "%v is too short", d.value)
	}
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"max_body", int64(c.MaxBody)}, {"max_header", int64(c.MaxHeader)}, {"max_connections", int64(c.MaxConnections)},
		{"max_attempts", int64(c.MaxAttempts)}, {"max_idle", int64(c.MaxIdle)}, {"tree_budget", int64(c.TreeBudget)}, {"gossip_budget", int64(c.GossipBudget)},
	} {
		bad.when(n.value <= 0, n.key, "write 1 or more", "%d is not positive", n.value)
	}
	bad.when(c.ProbePath != NoProbes && (!strings.HasPrefix(c.ProbePath, "/") || strings.ContainsAny(c.ProbePath, " #")), "probe_path", "write /health, or - for no probes", "%q is no path", c.ProbePath)
	bad.when(c.MaxHeader > 0 && c.MaxHeader < proxy.DefaultMaxHeader, "max_header", "16KiB is the default", "%s is below 16KiB, which agents' headers need", c.MaxHeader)
	bad.when(c.MaxBodyMemory < 0 || c.MaxBodyMemory > 0 && c.MaxBodyMemory/proxy.BodyMemoryShare < c.MaxBody, "max_body_memory", "raise it or lower max_body, or write 0 for a quarter of the memory", "%s is below %d times max_body, %s", c.MaxBodyMemory, proxy.BodyMemoryShare, c.MaxBody)
	bad.when(c.MaxBody > maxBodyLimit, "max_body", "1GiB is the most", "%s is too large: a body is held in memory", c.MaxBody)
}

// maxQueue bounds queue_requests: each waits on a connection of its own.
const maxQueue = 1 << 20

func (c *Config) checkQueue(bad complain) {
	bad.when(c.QueueRequests < 0 || c.QueueRequests > maxQueue, "queue_requests", "write 2048, or 0 for no queue", "%d is not between 0 and %d", c.QueueRequests, maxQueue)
	bad.when(c.QueueBytes < 0 || c.QueueBytes > 0 && c.QueueBytes < c.MaxBody, "queue_bytes", "write max_body or more, or 0 for half of max_body_memory", "%s is below max_body, %s: the largest requests could never wait", c.QueueBytes, c.MaxBody)
	bad.when(c.MaxBodyMemory > 0 && c.QueueBytes > c.MaxBodyMemory, "queue_bytes", "lower it or raise max_body_memory", "%s is above max_body_memory, %s, which holds these bodies", c.QueueBytes, c.MaxBodyMemory)
	bad.when(c.QueueTimeout <= 0, "queue_timeout", "write a duration such as 30s", "%v is too short", c.QueueTimeout)
	bad.when(c.QueueTTFT < 0, "queue_ttft", "write a duration such as 1s, or 0 for no bound", "%v is negative", c.QueueTTFT)
	bad.when(c.QueueWaiting < 0, "queue_waiting", "write 4, or 0 for no bound", "%d is negative", c.QueueWaiting)
	bad.when(c.QueueInFlight < 0, "queue_in_flight", "write the requests that an engine runs at once, or 0 for no bound", "%d is negative", c.QueueInFlight)
	bad.when(c.QueueRequests > 0 && c.QueueTTFT == 0 && c.QueueWaiting == 0 && c.QueueInFlight == 0, "queue_requests", "set queue_ttft, queue_waiting or queue_in_flight, or write queue_requests: 0",
		"no engine would ever be full, because none of the three bounds is set")
}

// minProbeInterval keeps probes from loading the engines.
const minProbeInterval = 10 * time.Millisecond

const maxBodyLimit = 1 << 30

func (c *Config) HashSecret() ([]byte, error) {
	if c.SecretFile == "" {
		return []byte(c.Secret), nil
	}
	text, err := member.ReadSecret(c.SecretFile, MaxSecretFile)
	if err != nil {
		return nil, fmt.Errorf("secret_file: %w", err)
	}
	key := strings.TrimSpace(string(text))
	if len(key) < minSecret {
		return nil, fmt.Errorf("secret_file %s: want %d to %d bytes, got %d", c.SecretFile, minSecret, MaxSecretFile, len(key))
	}
	return []byte(key), nil
}

// OTLPHeaders reads the headers for the collector; nil without a file.
func (c *Config) OTLPHeaders() (http.Header, error) {
	if c.OTLPHeadersFile == "" {
		return nil, nil
	}
	text, err := member.ReadSecret(c.OTLPHeadersFile, MaxSecretFile)
	if err != nil {
		return nil, fmt.Errorf("otlp_headers_file: %w", err)
	}
	headers, err := traces.ParseHeaders(string(text))
	if err != nil {
		return nil, fmt.Errorf("otlp_headers_file %s: %w", c.OTLPHeadersFile, err)
	}
	return headers, nil
}

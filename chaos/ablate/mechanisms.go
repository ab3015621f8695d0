package main

import "strings"

// variant is the code with a mechanism removed or a constant changed.
type variant struct {
	name, does string
	edits      []edit
}

// first is the name of the mechanism or constant.
func (v *variant) first() string { return strings.Fields(v.name)[0] }

// edit is a change in one place: old, which occurs once in the file below the module's root, becomes text.
type edit struct{ file, old, text string }

const (
	price   = "proxy/policy/prefix.go"
	match   = "proxy/policy/match.go"
	unseen  = "proxy/policy/unseen.go"
	stage   = "proxy/policy/stage.go"
	attempt = "proxy/policy/attempt.go"
	books   = "proxy/books/engine.go"
)

// mechanisms are removed one at a time. Short edits outlive changes around them; a test applies all.
var mechanisms = []variant{
	{"eviction-price", "computing a token costs more than its time, because it evicts another", []edit{{price, "eviction = 2.0", "eviction = 0.0"}}},
	{"delayed-price", "work costs also the time by which it delays later requests", []edit{{price, "eviction + (o.Own", "eviction + 0*(o.Own"}}},
	{"crowding", "each active request makes an engine dearer", []edit{{price, "crowding = 0.1", "crowding = 0.0"}}},
	{"overdue", "a prefill that takes longer than expected delays all behind it", []edit{{unseen, " + c.Overdue", ""}}},
	{"peers-load", "other nodes' reported work counts as load", []edit{
		{books, "peers := float64(e.peerTokens.Load())", "peers := 0.0"},
		{stage, " + e.engine.PeerTokens()", ""},
		{stage, "own+e.engine.PeerActive(), own", "own, own"},
	}},
	{"peers-progress", "what an engine has computed of another node's running prefill leaves its queue", []edit{
		{books, "computed := min(rate", "computed := 0 * min(rate"},
	}},
	{"pouring", "a request that no cache helps goes to one of the engines that it and others' unseen ones fill, not to the best", []edit{
		{unseen, "poured := requests", "poured := 0 * requests"},
	}},
	{"damping", "engines are filled with more than the unseen requests", []edit{{unseen, "damping = 3", "damping = 1"}}},
	{"turns", "the engines that are filled take turns; without, they are drawn", []edit{
		{unseen, "turn = c.engine.UntilTurn(c.water)", "turn = math.Log(1-unit(s.Rand())) / -c.water"},
	}},
	{"holders-in-turn", "engines that hold as much as the cheapest holder take turns with it", []edit{
		{unseen, "if s.unseen == 0 ||", "if true ||"},
	}},
	{"popular-prefixes", "what many prompts begin with makes no engine a holder", []edit{
		{match, "Common(hashes, s.known,", "Common(hashes, 0*s.known,"},
	}},
	{"peers-prefixes", "nodes add up how often prompts left prefixes, so that all soon know what many begin with", []edit{
		{"proxy/policy/traffic.go", "p.prefixes.SetPeers(sum.Prefixes, len(p.entries))", ""},
	}},
	{"hot-prefixes", "the fleet agrees which engines hold a hot prefix", []edit{{"chaos/fleetsim/hot.go", "if cfg.NoHot ||", "if true || cfg.NoHot ||"}}},
	{"overtaken", "a prefill behind one that another node reports later teaches no rate", []edit{
		{books, "c.ahead += tokens", "c.ahead += 0 * tokens"},
		{books, "e.headAhead.Add(tokens)", "e.headAhead.Add(0 * tokens)"},
	}},
	{"learned-rates", "an engine's own prefill rate replaces the fleet's", []edit{{books, ") RateOr(prior float64) float64 {", ") RateOr(prior float64) float64 {\n\treturn prior"}}},
	{"pace", "how long an answer that is not streamed takes shows its engine's rate", []edit{
		{attempt, "case a.charge.NonStreaming && !a.remote && a.at.first == 0", "case false && a.charge.NonStreaming && a.at.first == 0"},
	}},
	{"reported-rates", "the rate that an engine reports replaces what requests show", []edit{{"proxy/books/telemetry.go", "tokens <= 0 || tokens < enough", "true || tokens < enough"}}},
	{"reported-queues", "queues that engines report replace what nodes report of each other", []edit{
		{"proxy/policy/telemetry.go", "if s.Nodes == 1 || s.blind() {", "if true || s.Nodes == 1 || s.blind() {"},
	}},
	{"active-excess", "in a fleet, new work avoids engines with many more active requests than others", []edit{
		{unseen, "if active <= usual {", "if true {"},
	}},
	{"slow-start", "a new engine gets fewer requests at first", []edit{{"proxy/policy/decide.go", "if int64(now) < r.cold", "if false && int64(now) < r.cold"}}},
	{"cached-answers", "a holder is expected to hold the last answer, too", []edit{{match, "answers := s.pool.texts.cachedAnswers()", "answers := 0.0"}}},
	{"cached-tokens", "reported cached tokens correct the tree and the horizon", []edit{{attempt, "if o.CachedTokens >= 0 {", "if false && o.CachedTokens >= 0 {"}}},
}

// scorers are the variants of strategy weighted: a scorer is left out of the default weights, or added to them,
// or tried alone. Alone, prefix is without-load, and load is without-prefix.
var scorers = []variant{
	weights("without-prefix", "load alone", "scoreLoad: 1"),
	weights("without-load", "prefix alone", "scorePrefix: 2"),
	weights("with-queue", "few prefill tokens ahead count, too", "scorePrefix: 2, scoreLoad: 1, scoreQueue: 1"),
	weights("with-kv-usage", "free KV memory counts, too", "scorePrefix: 2, scoreLoad: 1, scoreKV: 1"),
	weights("with-session", "the engine that the session id hashes to counts, too", "scorePrefix: 2, scoreLoad: 1, scoreSession: 1"),
	weights("with-lora", "an engine that this node sent the adapter counts, too; drawn requests name none", "scorePrefix: 2, scoreLoad: 1, scoreLoRA: 1"),
	weights("only-queue", "queue alone", "scoreQueue: 1"),
	weights("only-kv-usage", "kv-usage alone", "scoreKV: 1"),
	weights("only-session", "session alone; requests without a session follow the prompt's branch", "scoreSession: 1"),
	weights("only-lora", "lora alone; without adapters all engines tie, and requests follow the prompt's branch", "scoreLoRA: 1"),
}

// weights is the variant with other default weights.
func weights(name, does, list string) variant {
	return variant{name, does, []edit{{"proxy/policy/weighted.go", "{scorePrefix: 2, scoreLoad: 1}", "{" + list + "}"}}}
}

package node

import (
	"github.com/rs/zerolog"

	"grapevine.example/gossip/member"
	"grapevine.example/node/backends"
	"grapevine.example/node/health"
	"grapevine.example/node/sources"
	"grapevine.example/raftstore"
)

// Values of the log field "event": unlike messages, they never change.
const (
	EventStarted       = "started"
	EventReady         = "ready"
	EventNotReady      = "not_ready"
	EventDrainStarted  = "drain_started"
	EventStopped       = "stopped"
	EventReplacing     = "replacing"
	EventHandedOver    = "handed_over"
	EventTookOver      = "took_over"
	EventReplaceFailed = "replace_failed"
	EventReloaded      = "config_reloaded"
	EventReloadRefused = "config_refused"
	EventCertificate   = "certificate_invalid"

	EventClientsApplied = "clients_applied"
	EventClientsRefused = "clients_refused"
)

// Event is a value of the log field "event", the level of its lines, which journald knows as a priority, and when it is logged.
type Event struct {
	Name    string
	Level   zerolog.Level
	Meaning string
}

const (
	levelInfo  = zerolog.InfoLevel
	levelWarn  = zerolog.WarnLevel
	levelError = zerolog.ErrorLevel
)

// Events is in the order of docs/operate.md, which is generated from it.
func Events() []Event {
	return []Event{
		{EventStarted, levelInfo, "The node listens; it may still be warming up."},
		{EventReady, levelInfo, "It asks for traffic."},
		{EventNotReady, levelInfo, "It asks for no traffic; `reason`."},
		{EventDrainStarted, levelInfo, "The node received the signal to stop; `grace_s` is how long it still accepts requests, `timeout_s` how long running ones may then take."},
		{EventStopped, levelInfo, "The node has stopped; `error` if it cut requests."},
		{EventReplacing, levelInfo, "SIGUSR2: the new process has accepted its configuration and received what this one knows; `pid`, `version`."},
		{EventHandedOver, levelInfo, "It serves, and this process ends its requests; `pid`, `version`, `requests`."},
		{EventTookOver, levelInfo, "The new process has taken over from the one that started it."},
		{EventReplaceFailed, levelError, "The new process could not take over, and this one serves on; `error`."},
		{EventReloaded, levelInfo, "SIGHUP: `applied` is in force, `at_next_start` waits for a restart; `changes` has the old and new values, without secrets. A warning if something waits."},
		{EventReloadRefused, levelError, "SIGHUP: a wrong configuration changed nothing; `error`."},
		{EventCertificate, levelWarn, "A certificate of this node has expired or is not valid yet; `problem`."},
		{EventClientsApplied, levelInfo, "clients_file has changed, and is in force."},
		{EventClientsRefused, levelWarn, "clients_file is wrong; the clients that were in force stay; `error`."},
		{backends.EventStateAdopted, levelInfo, "The node now routes by the agreed state, not by its own list."},
		{backends.EventRulesApplied, levelInfo, "The fleet has other routing rules; `version`."},
		{backends.EventEngineAdded, levelInfo, "The fleet has a new engine."},
		{backends.EventEngineRemoved, levelInfo, "An engine was taken out of the fleet."},
		{backends.EventEngineChanged, levelInfo, "Its URL, weight, models or KV size changed."},
		{backends.EventEngineDraining, levelInfo, "No new requests go there; `reason`, `by`."},
		{backends.EventEngineResumed, levelInfo, "Its drain has ended."},
		{backends.EventEngineDown, levelWarn, "Health checks or an operator marked it down; `reason`, `by`."},
		{backends.EventEngineUp, levelInfo, "It is in use again."},
		{backends.EventEngineRestart, levelInfo, "Its process was restarted: nodes forget its cache."},
		{health.EventProbesFail, levelWarn, "This node's probes of an engine fail."},
		{health.EventProbesPass, levelInfo, "They pass again."},
		{backends.EventModelsFail, levelWarn, "An engine does not list its models; the last list stays in force; `error`."},
		{backends.EventModelsListed, levelInfo, "It lists them, again or for the first time, or lists others."},
		{sources.EventSourceFails, levelWarn, "A source of `backends_from` fails; its last answer stays in force; `source`, `error`."},
		{sources.EventSourceAnswers, levelInfo, "It answers again."},
		{string(member.Joined), levelInfo, "Another node is in the fleet."},
		{string(member.Updated), levelInfo, "Its data changed, such as its version."},
		{string(member.Left), levelInfo, "It announced its stop."},
		{string(member.Failed), levelWarn, "It does not answer any more."},
		{member.EventRefused, levelWarn, "This node refused another one, once a minute for each reason; `addr`, `error`."},
		{member.EventKeysChanged, levelInfo, "Another node asks to install, use or remove a gossip key; `op`. An error if this node cannot."},
		{raftstore.EventLeaderChanged, levelInfo, "Another node leads Raft; `leader`."},
		{raftstore.EventLeaderLost, levelWarn, "No leader is known: changes wait, routing goes on."},
		{raftstore.EventDiskFailed, levelError, "The disk of `data_dir` takes no writes: the node follows in memory and does not vote; `error`."},
		{raftstore.EventDiskWorks, levelInfo, "It takes writes again."},
		{raftstore.EventTooOld, levelError, "This program is too old for the state of its fleet, which it does not follow any more."},
	}
}

package node

import (
	"grapevine.example/gossip/member"
	"grapevine.example/node/backends"
	"grapevine.example/node/health"
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

type Event struct{ Name, Meaning string }

// Events is in the order of docs/operate.md, which is generated from it.
func Events() []Event {
	return []Event{
		{EventStarted, "The node listens; it may still be warming up."},
		{EventReady, "It asks for traffic."},
		{EventNotReady, "It asks for no traffic; `reason`."},
		{EventDrainStarted, "The node received the signal to stop; `grace_s` is how long it still accepts requests, `timeout_s` how long running ones may then take."},
		{EventStopped, "The node has stopped; `error` if it cut requests."},
		{EventReplacing, "SIGUSR2: the new process has accepted its configuration and received what this one knows; `pid`, `version`."},
		{EventHandedOver, "It serves, and this process ends its requests; `pid`, `version`, `requests`."},
		{EventTookOver, "The new process has taken over from the one that started it."},
		{EventReplaceFailed, "The new process could not take over, and this one serves on; `error`."},
		{EventReloaded, "SIGHUP: `applied` is in force, `at_next_start` waits for a restart; `changes` has the old and new values, without secrets."},
		{EventReloadRefused, "SIGHUP: a wrong configuration changed nothing; `error`."},
		{EventCertificate, "A certificate of this node has expired or is not valid yet; `problem`."},
		{EventClientsApplied, "clients_file has changed, and is in force."},
		{EventClientsRefused, "clients_file is wrong; the clients of before stay in force; `error`."},
		{backends.EventStateAdopted, "The node now routes by the agreed state, not by its own list."},
		{backends.EventRulesApplied, "The fleet has other routing rules; `version`."},
		{backends.EventEngineAdded, "The fleet has a new engine."},
		{backends.EventEngineRemoved, "An engine was taken out of the fleet."},
		{backends.EventEngineChanged, "Its URL, weight, models or KV size changed."},
		{backends.EventEngineDraining, "No new requests go there; `reason`, `by`."},
		{backends.EventEngineResumed, "Its drain has ended."},
		{backends.EventEngineDown, "Health checks or an operator marked it down; `reason`, `by`."},
		{backends.EventEngineUp, "It is in use again."},
		{backends.EventEngineRestart, "Its process was restarted: nodes forget its cache."},
		{health.EventProbesFail, "This node's probes of an engine fail."},
		{health.EventProbesPass, "They pass again."},
		{string(member.Joined), "Another node is in the fleet."},
		{string(member.Updated), "Its data changed, such as its version."},
		{string(member.Left), "It announced its stop."},
		{string(member.Failed), "It does not answer any more."},
		{raftstore.EventLeaderChanged, "Another node leads Raft; `leader`."},
		{raftstore.EventLeaderLost, "No leader is known: changes wait, routing goes on."},
	}
}

package node

import (
	"grapevine/gossip/member"
	"grapevine/node/backends"
	"grapevine/node/health"
	"grapevine/raftstore"
)

// Values of the log field "event": unlike messages, they never change.
const (
	EventStarted       = "started"
	EventReady         = "ready"
	EventNotReady      = "not_ready"
	EventDrainStarted  = "drain_started"
	EventStopped       = "stopped"
	EventReloaded      = "config_reloaded"
	EventReloadRefused = "config_refused"
	EventCertificate   = "certificate_invalid"

	EventStateAdopted = "state_adopted"
)

// Event is a value of "event" and when it is logged.
type Event struct{ Name, Meaning string }

// Events is in the order of docs/operate.md, which is generated from it.
func Events() []Event {
	return []Event{
		{EventStarted, "The node listens; it may still be warming up."},
		{EventReady, "It asks for traffic."},
		{EventNotReady, "It asks for none any more; `reason`."},
		{EventDrainStarted, "The node received the signal to stop; `grace_s` is how long it still accepts requests."},
		{EventStopped, "Everything that it ran has ended; `error` if something was cut."},
		{EventReloaded, "SIGHUP: `applied` is in force, `at_next_start` differs and waits."},
		{EventReloadRefused, "SIGHUP: the configuration is wrong, nothing has changed; `error`."},
		{EventCertificate, "A certificate of this node has expired or is not valid yet; `problem`."},
		{EventStateAdopted, "The node goes by what the fleet has agreed on from now on, not by its own list."},
		{backends.EventRulesApplied, "The fleet has other routing rules; `version`."},
		{backends.EventEngineAdded, "The fleet has a new engine."},
		{backends.EventEngineRemoved, "An engine was taken out of the fleet."},
		{backends.EventEngineChanged, "Its URL, weight, models or KV size is another."},
		{backends.EventEngineDraining, "No new requests go there; `reason`, `by`."},
		{backends.EventEngineResumed, "Its drain has ended."},
		{backends.EventEngineDown, "The fleet takes it for dead, or an operator has marked it so; `reason`, `by`."},
		{backends.EventEngineUp, "It is in use again."},
		{backends.EventEngineRestart, "Its process is another one; what its cache held is forgotten."},
		{health.EventProbesFail, "This node's own probes of an engine fail from now on; the fleet decides by several nodes'."},
		{health.EventProbesPass, "They pass again."},
		{member.Joined.Event(), "Another node is in the fleet."},
		{member.Updated.Event(), "What it says of itself has changed, as its version."},
		{member.Left.Event(), "It has stopped and said so."},
		{member.Failed.Event(), "It does not answer any more."},
		{raftstore.EventLeaderChanged, "Another node leads the group that agrees; `leader`."},
		{raftstore.EventLeaderLost, "No leader is known: changes wait, routing goes on."},
	}
}

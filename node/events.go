package node

import (
	"slices"

	"grapevine/gossip/member"
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
	EventRulesApplied = "rules_applied"

	EventEngineAdded    = "engine_added"
	EventEngineRemoved  = "engine_removed"
	EventEngineChanged  = "engine_changed"
	EventEngineDraining = "engine_draining"
	EventEngineResumed  = "engine_resumed"
	EventEngineDown     = "engine_down"
	EventEngineUp       = "engine_up"
	EventEngineRestart  = "engine_restarted"
	EventProbesFail     = "engine_probes_fail"
	EventProbesPass     = "engine_probes_pass"
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
		{EventRulesApplied, "The fleet has other routing rules; `version`."},
		{EventEngineAdded, "The fleet has a new engine."},
		{EventEngineRemoved, "An engine was taken out of the fleet."},
		{EventEngineChanged, "Its URL, weight, models or KV size is another."},
		{EventEngineDraining, "No new requests go there; `reason`, `by`."},
		{EventEngineResumed, "Its drain has ended."},
		{EventEngineDown, "The fleet takes it for dead, or an operator has marked it so; `reason`, `by`."},
		{EventEngineUp, "It is in use again."},
		{EventEngineRestart, "Its process is another one; what its cache held is forgotten."},
		{EventProbesFail, "This node's own probes of an engine fail from now on; the fleet decides by several nodes'."},
		{EventProbesPass, "They pass again."},
		{member.Joined.Event(), "Another node is in the fleet."},
		{member.Updated.Event(), "What it says of itself has changed, as its version."},
		{member.Left.Event(), "It has stopped and said so."},
		{member.Failed.Event(), "It does not answer any more."},
		{raftstore.EventLeaderChanged, "Another node leads the group that agrees; `leader`."},
		{raftstore.EventLeaderLost, "No leader is known: changes wait, routing goes on."},
	}
}

// maxEngineEvents bounds the lines of one change.
const maxEngineEvents = 64

func (n *Node) logChanges(old, now *roster) {
	log := n.log.With().Str("component", "agreement").Logger()
	if now.ruled.Version != old.ruled.Version {
		log.Info().Str("event", EventRulesApplied).Uint64("version", now.ruled.Version).Int("rules", len(now.rules)).Msg("the fleet has other rules")
	}
	before := make(map[string]*raftstore.Backend, len(old.list))
	for _, u := range old.list {
		before[u.Name] = u.agreed
	}
	lines := 0
	note := func(event string, b *raftstore.Backend) {
		if lines++; lines > maxEngineEvents {
			return
		}
		line := log.Info()
		if event == EventEngineDown {
			line = log.Warn()
		}
		line = line.Str("event", event).Str("backend", b.Name).Str("url", b.URL)
		switch event {
		case EventEngineDown:
			line = line.Str("reason", b.Reason).Stringer("by", b.DownBy)
		case EventEngineDraining:
			line = line.Str("reason", b.Reason).Stringer("by", b.DrainedBy)
		}
		line.Msg("the fleet's engines have changed")
	}
	for _, u := range now.list {
		if event := engineEvent(before[u.Name], u.agreed); event != "" {
			note(event, u.agreed)
		}
		delete(before, u.Name)
	}
	for _, u := range old.list {
		if was, gone := before[u.Name]; gone {
			note(EventEngineRemoved, was)
		}
	}
	if lines > maxEngineEvents {
		log.Info().Int("more", lines-maxEngineEvents).Msg("further engines have changed")
	}
}

// engineEvent names the change of an engine since was, nil if new; "" without a name.
func engineEvent(was, is *raftstore.Backend) string {
	switch {
	case was == nil:
		return EventEngineAdded
	case was.State != is.State:
		switch is.State {
		case raftstore.Draining:
			return EventEngineDraining
		case raftstore.Down:
			return EventEngineDown
		}
		if was.State == raftstore.Draining {
			return EventEngineResumed
		}
		return EventEngineUp
	case was.URL == is.URL && was.Generation != is.Generation:
		return EventEngineRestart
	case was.URL != is.URL || was.Weight != is.Weight || was.KVTokens != is.KVTokens || !slices.Equal(was.Models, is.Models):
		return EventEngineChanged
	}
	return ""
}

package backends

import (
	"slices"

	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

// Values of the log field "event": unlike messages, they never change.
const (
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

	EventModelsFail   = "engine_models_fail"
	EventModelsListed = "engine_models_listed"
)

const maxEngineEvents = 64

func (d *Directory) logFirst(s *raftstore.State) {
	log := d.cfg.Log.With().Str("component", "agreement").Logger()
	for i := range d.cfg.Own {
		own := &d.cfg.Own[i]
		if b, ok := s.Backend(own.Name); ok && (!config.SameURL(b.URL, own.URL) || b.Weight != own.Weight) {
			log.Warn().Str("backend", own.Name).Str("agreed_url", b.URL).Float64("agreed_weight", b.Weight).
				Msg("the configuration has another url or weight than the fleet has agreed on: the latter counts; change it with PATCH /backends/NAME of the admin API")
		}
	}
	log.Info().Str("event", EventStateAdopted).Uint64("version", s.Version).Int("backends", len(s.Backends)).Msg("routing by what the fleet has agreed on")
}

func (d *Directory) logChanges(old, now *Roster) {
	log := d.cfg.Log.With().Str("component", "agreement").Logger()
	if now.Source.Version != old.Source.Version {
		log.Info().Str("event", EventRulesApplied).Uint64("version", now.Source.Version).Int("rules", len(now.Rules)).Msg("the fleet changed its routing rules")
	}
	before := make(map[string]*raftstore.Backend, len(old.List))
	for _, e := range old.List {
		before[e.Name] = &e.Backend
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
		line.Msg("the fleet changed an engine")
	}
	for _, e := range now.List {
		if event := engineEvent(before[e.Name], &e.Backend); event != "" {
			note(event, &e.Backend)
		}
		delete(before, e.Name)
	}
	for _, e := range old.List {
		if was, gone := before[e.Name]; gone {
			note(EventEngineRemoved, was)
		}
	}
	if lines > maxEngineEvents {
		log.Info().Int("more", lines-maxEngineEvents).Msg("the fleet changed more engines")
	}
}

// engineEvent returns "" if no event describes the change.
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
	case was.URL != is.URL || was.Weight != is.Weight || was.KVTokens != is.KVTokens || was.Role != is.Role ||
		was.BootstrapPort != is.BootstrapPort || !slices.Equal(was.Models, is.Models) || !slices.Equal(was.Labels, is.Labels):
		return EventEngineChanged
	}
	return ""
}

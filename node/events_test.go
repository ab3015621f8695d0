package node

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

type eventLog struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *eventLog) logger() zerolog.Logger { return zerolog.New(lockedWriter{&l.mu, &l.out}) }

func (l *eventLog) has(event, text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.out.String()) {
		var got struct{ Event string }
		if json.Unmarshal([]byte(line), &got) == nil && got.Event == event && strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// TestEventsOfAFleet: every node logs the events it sees under their names.
func TestEventsOfAFleet(t *testing.T) {
	t.Parallel()
	logs := make(map[string]*eventLog)
	first, second := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	nodes := startAgreeingWith(t, func(c *config.Config) {
		logs[c.NodeName] = new(eventLog)
		c.Log = logs[c.NodeName].logger()
	}, first.URL)
	everywhere := func(event, text string) {
		t.Helper()
		eventually(t, event+" at every node", func() bool {
			for _, l := range logs {
				if !l.has(event, text) {
					return false
				}
			}
			return true
		})
	}
	everywhere(EventStarted, "")
	everywhere(EventReady, "")
	everywhere(backends.EventStateAdopted, "")
	everywhere("peer_joined", "")
	everywhere("leader_changed", "")
	c, ctx := client(nodes[1]), t.Context()
	done := func(_ *admin.Changed, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the founders counted as seeds", func() bool { return nodes[2].fleetFigures().seeds["joined"] >= 2 })
	const gpu = `"backend":"second"`
	done(c.AddBackends(ctx, []admin.NewBackend{{Name: "second", URL: second.URL}}, false))
	everywhere(backends.EventEngineAdded, gpu)
	done(c.SetBackendState(ctx, []string{"second"}, "drain", "new disk"))
	everywhere(backends.EventEngineDraining, `"reason":"new disk","by":"operator"`)
	done(c.SetBackendState(ctx, []string{"second"}, "resume", ""))
	everywhere(backends.EventEngineResumed, gpu)
	done(c.SetBackendState(ctx, []string{"second"}, "down", "smoke"))
	everywhere(backends.EventEngineDown, `"reason":"smoke","by":"operator"`)
	done(c.SetBackendState(ctx, []string{"second"}, "up", ""))
	everywhere(backends.EventEngineUp, gpu)
	done(nodes[0].UpdateBackend(ctx, raftstore.UpdateBackend{Name: "second", Weight: new(2.0)}, false))
	everywhere(backends.EventEngineChanged, gpu)
	if _, err := nodes[0].store.Load().Apply(ctx, raftstore.NewGeneration{Name: "second"}); err != nil {
		t.Fatal(err)
	}
	everywhere(backends.EventEngineRestart, gpu)
	done(c.RemoveBackends(ctx, []string{"second"}))
	everywhere(backends.EventEngineRemoved, gpu)
	if _, err := c.ApplyRules(ctx, "rules: [{strategy: random}]\n", nil, false); err != nil {
		t.Fatal(err)
	}
	everywhere(backends.EventRulesApplied, `"rules":1`)

	gone := nodes[2]
	gone.Drain(ctx, time.Nanosecond)
	stopNode(t, gone)
	for _, event := range []string{EventNotReady, EventDrainStarted, EventStopped} {
		if !logs[gone.Name()].has(event, "") {
			t.Errorf("no %s at the node that stopped", event)
		}
	}
	delete(logs, gone.Name())
	everywhere("peer_left", `"peer":"`+gone.Name()+`"`)
}

func TestEventsAreListed(t *testing.T) {
	t.Parallel()
	var seen []string
	for _, e := range Events() {
		if e.Meaning == "" || slices.Contains(seen, e.Name) || strings.Trim(e.Name, "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("%+v", e)
		}
		seen = append(seen, e.Name)
	}
}

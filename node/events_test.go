package node

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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
		var got struct{ Event, Level string }
		if json.Unmarshal([]byte(line), &got) == nil && got.Event == event && strings.Contains(line, text) {
			return got.Level == levelOf(event)
		}
	}
	return false
}

func levelOf(event string) string {
	for _, e := range Events() {
		if e.Name == event {
			return e.Level.String()
		}
	}
	return "an event that is not listed"
}

// TestEventsOfAFleet: every node logs the events it sees under their names, at their levels.
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

// byCode are the events whose lines have a level or a name that the source computes. TestEventsOfAFleet compares those of engines and peers.
var byCode = []string{"config_reloaded", "keys_changed", "engine_added", "engine_removed", "engine_changed", "engine_draining", "engine_resumed",
	"engine_down", "engine_up", "engine_restarted", "peer_joined", "peer_updated", "peer_left", "peer_failed"}

// TestEventsOfTheSource compares Events with the lines that the source logs: every event is listed, at its level, and none is listed that
// nothing logs.
func TestEventsOfTheSource(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, dir := range []string{".", "../proxy", "../raftstore", "../gossip", "../cmd/grapevine"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			source.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := make(map[string]string) // by constant
	for _, m := range regexp.MustCompile(`(?m)^\t(Event[A-Z]\w*) += "([a-z_]+)"`).FindAllStringSubmatch(source.String(), -1) {
		names[m[1]] = m[2]
	}
	levels := make(map[string]string) // by name
	for _, m := range regexp.MustCompile(`(?:log|Log)\.(Info|Warn|Error)\(\).*?Str\("event", (?:\w+\.)?(\w+)\)`).FindAllStringSubmatch(source.String(), -1) {
		name, known := names[m[2]]
		if !known {
			t.Errorf("%s is no constant with the name of an event", m[2])
		}
		levels[name] = strings.ToLower(m[1])
	}
	for _, e := range Events() {
		if level, found := levels[e.Name]; found && level != e.Level.String() {
			t.Errorf("%s is logged at %s, and listed at %s", e.Name, level, e.Level)
		} else if !found && !slices.Contains(byCode, e.Name) {
			t.Errorf("nothing logs %s", e.Name)
		}
		delete(levels, e.Name)
		maps.DeleteFunc(names, func(_, name string) bool { return name == e.Name })
	}
	for _, left := range []map[string]string{levels, names} {
		if len(left) > 0 {
			t.Errorf("not in Events: %v", left)
		}
	}
}

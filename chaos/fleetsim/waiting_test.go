package fleetsim

import (
	"errors"
	"testing"
	"time"

	"grapevine.example/chaos/workload"
	"grapevine.example/proxy/clients"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/queue"
)

// crowded is the chat workload beyond what the engines serve.
func crowded(t testing.TB) Config {
	cfg := chat(t, "prefix")
	cfg.Engine.KVTokens, cfg.Engine.MaxRunning = 1_200_000, 8
	cfg.Options.Duration, cfg.Options.Speed = 20*time.Second, 2
	cfg.Clients = []Client{{Name: "victim", Share: 1}, {Name: "aggressor", Share: 10}}
	cfg.Policy.Gate = policy.Gate{TTFT: 100 * time.Millisecond, Waiting: 4, InFlight: 8}
	return cfg
}

func TestQueueProtectsClients(t *testing.T) {
	cfg := crowded(t)
	cfg.Queue = queue.Limits{Requests: 1 << 20, Bytes: 1 << 40, Wait: time.Hour}
	for _, nodes := range []int{1, 4} {
		cfg.Nodes = []int{nodes}
		reps := run(t, cfg)
		if len(reps) != 4 || reps[0].Queueing != "alone: victim" || reps[3].Queueing != "on" {
			t.Fatalf("%d runs, %+v", len(reps), reps)
		}
		off, on := reps[2], reps[3]
		victim := func(i int) float64 { return reps[i].Clients[len(reps[i].Clients)-1].TTFT.P50 }
		if victim(3) > victim(2)/4 {
			t.Errorf("%d nodes: the victim's median is %.0f ms with a queue, %.0f without and %.0f alone", nodes, victim(3), victim(2), victim(0))
		}
		if on.Goodput < 0.9*off.Goodput || on.HitRate < off.HitRate-0.02 {
			t.Errorf("%d nodes: %.0f tokens/s and hits of %.3f with a queue, %.0f and %.3f without", nodes, on.Goodput, on.HitRate, off.Goodput, off.HitRate)
		}
	}
}

func TestQueueServesPriorities(t *testing.T) {
	cfg := crowded(t)
	cfg.Clients = []Client{{Name: "batch", Share: 4, Priority: clients.Batch}, {Name: "inter", Share: 1, Priority: clients.Interactive}}
	cfg.Queueing = []Queueing{QueueOn}
	r := run(t, cfg)[0]
	batch, inter := r.Clients[0], r.Clients[1]
	if inter.TTFT.P50 > batch.TTFT.P50/4 || inter.Refused > 0 {
		t.Errorf("interactive %+v, batch %+v", inter, batch)
	}
	if batch.Goodput == 0 {
		t.Error("batch starves")
	}
}

func TestQueueIsBounded(t *testing.T) {
	cfg := crowded(t)
	cfg.Queueing = []Queueing{QueueOn}
	cfg.Queue = queue.Limits{Requests: 20, Bytes: 1 << 30, Wait: 2 * time.Second}
	r := run(t, cfg)[0]
	if r.Refused == 0 || r.Errors > 0 || r.Clients[0].Name != "aggressor" || r.Clients[0].Refused < r.Refused*9/10 {
		t.Errorf("%d refused, %d errors: %+v", r.Refused, r.Errors, r.Clients)
	}
}

func TestClientsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"twice":    func(c *Config) { c.Clients[1].Name = "victim" },
		"share":    func(c *Config) { c.Clients[0].Share = 0 },
		"queueing": func(c *Config) { c.Queueing = []Queueing{"maybe"} },
		"limits":   func(c *Config) { c.Queue.Requests = 1 },
	} {
		cfg := crowded(t)
		cfg.Options = workload.Options{Requests: 10}
		spoil(&cfg)
		if _, err := cfg.completed(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

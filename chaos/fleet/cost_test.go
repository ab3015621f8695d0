package fleet_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/gossip"
)

const placementsPerSecond = 1000

func TestLiveApplyCost(t *testing.T) {
	full := live(t)
	const guests = liveNodes - 1
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Guests, cfg.Engines = 1, guests, 64
		cfg.NoBalancer = true
		cfg.Settings["metrics_interval"], cfg.Settings["loads_interval"], cfg.Settings["models_interval"] = "0s", "0s", "0s"
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	drivers := guestsOf(t, f, guests)
	meet(ctx, t, drivers, f.Nodes()...)
	n := f.Nodes()[0]
	length := whenFull(full, 60*time.Second, 12*time.Second)
	idle := share(ctx, t, n, length/2)
	stop := drive(ctx, drivers, 1, float64(placementsPerSecond)/guests)
	defer stop()
	if err := sleep(ctx, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	before, placed := applied(ctx, t, n), made(drivers)
	began := time.Now()
	busy := share(ctx, t, n, length)
	after := applied(ctx, t, n)
	rate := float64(made(drivers)-placed) / time.Since(began).Seconds()
	stop()
	seconds := time.Since(began).Seconds()
	shown(t, "idle", 100*idle, "% of a core")
	atLeast(t, "placements applied", rate, 0.9*placementsPerSecond, "/s")
	shown(t, "records applied", float64(after.AppliedRecords-before.AppliedRecords)/seconds, "/s")
	shown(t, "payload applied", float64(after.AppliedBytes-before.AppliedBytes)/seconds/1e3, "kB/s")
	if lost := after.MissedBatches + after.Malformed + after.DroppedBound; lost > 0 || after.AppliedNews == before.AppliedNews {
		t.Errorf("not all was applied: %+v", after)
	}
	atMost(t, "CPU for applying", 100*(busy-idle), whenFull(full, 5.0, 15), "% of a core")
}

func share(ctx context.Context, t *testing.T, n *fleet.Node, d time.Duration) float64 {
	t.Helper()
	before, err := n.Usage()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := sleep(ctx, d); err != nil {
		t.Fatal(err)
	}
	after, err := n.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return (after.CPU - before.CPU).Seconds() / time.Since(began).Seconds()
}

func applied(ctx context.Context, t *testing.T, n *fleet.Node) gossip.Stats {
	t.Helper()
	g, err := n.Gossip(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return g.Stats
}

func made(guests []*guest) (n int64) {
	for _, g := range guests {
		n += g.placed.Load()
	}
	return n
}

// tlsRecord is 5 bytes of header, 16 of tag, 1 of content type (TLS 1.3).
const tlsRecord = 22

func TestLiveGossipBytes(t *testing.T) {
	full := live(t)
	const guests = liveNodes - 1
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Nodes, cfg.Guests, cfg.NoBalancer = 1, guests, true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	drivers := guestsOf(t, f, guests)
	meet(ctx, t, drivers, f.Nodes()...)
	stop := drive(ctx, drivers, 2, float64(placementsPerSecond)/guests)
	defer stop()
	if err := sleep(ctx, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	length := whenFull(full, 60*time.Second, 10*time.Second)
	var before [guests]gossip.Stats
	for i, g := range drivers {
		before[i] = g.fleet.Stats()
	}
	began := time.Now()
	if err := sleep(ctx, length); err != nil {
		t.Fatal(err)
	}
	var sent, information, records float64
	kinds := map[string]float64{}
	for i, g := range drivers {
		s := g.fleet.Stats()
		sent += float64(s.SentBytes-before[i].SentBytes) + tlsRecord*float64(s.Writes-before[i].Writes)
		information += float64(s.PublishedBytes-before[i].PublishedBytes) * (liveNodes - 1)
		records += float64(s.PublishedRecords - before[i].PublishedRecords)
		for kind, n := range s.SentByKind {
			kinds[kind] += float64(n - before[i].SentByKind[kind])
		}
	}
	stop()
	each := time.Since(began).Seconds() * guests
	shown(t, "records published per node", records/each, "/s")
	shown(t, "size of a record", information/(liveNodes-1)/records, "bytes")
	shown(t, "encoder's information per node", information/each/1e3, "kB/s")
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if n := kinds[kind] / each / 1e3; n > 0.001 {
			shown(t, "sent per node as "+kind, n, "kB/s")
		}
	}
	shown(t, "sent per node, TLS included", sent/each/1e3, "kB/s")
	atMost(t, "sent for each byte of information", sent/information, 1.3, "")
}

const soakEnv = "GRAPEVINE_LIVE_SOAK"

func TestLiveSoak(t *testing.T) {
	full := live(t)
	f := liveFleet(t, func(cfg *fleet.Config) {
		cfg.Engine.KVTokens, cfg.Engine.MaxModelLen = 200_000, 100_000
		cfg.Settings["horizon"] = "30s"
		cfg.Env = []string{"GOGC=100"}
	})
	length := whenFull(full, 20*time.Minute, 30*time.Second)
	if text := os.Getenv(soakEnv); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+10*time.Minute)
	defer cancel()
	load := startTraffic(ctx, t, f, trafficConfig{rate: 8, seed: 4, length: length + time.Minute})
	var samples [][]memory
	for began := time.Now(); time.Since(began) < length; {
		if err := sleep(ctx, min(length/60, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		var at []memory
		for _, n := range f.Nodes() {
			at = append(at, memoryOf(ctx, t, n))
		}
		samples = append(samples, at)
	}
	load.stop()
	load.noErrors(t)
	// Medians, because single samples depend on the garbage collector.
	quarter := len(samples) / 4
	for i := range 4 {
		q := medians(samples[i*quarter : (i+1)*quarter])
		t.Logf("quarter %d: resident %.1f MB, heap %.2f MB, of it tree and journal %.2f MB, %v goroutines, %v files",
			i+1, q.resident/1e6, q.heap/1e6, q.kept/1e6, q.goroutines, q.files)
	}
	third, last := medians(samples[2*quarter:3*quarter]), medians(samples[3*quarter:])
	shown(t, "requests", float64(load.result.Requests), "")
	shown(t, "resident memory per node in the last quarter", last.resident/1e6, "MB")
	shown(t, "heap per node", last.heap/1e6, "MB")
	shown(t, "of it tree and journal", last.kept/1e6, "MB")
	atMost(t, "heap, of what it was a quarter before", last.heap/third.heap, 1.1+whenFull(full, 0, 0.4), "")
	atMost(t, "heap beside tree and journal, of what it was a quarter before",
		(last.heap-last.kept)/(third.heap-third.kept), 1.1+whenFull(full, 0, 0.4), "")
	atMost(t, "heap beside tree and journal", (last.heap-last.kept)/1e6, 64, "MB")
	atMost(t, "resident, of what it was a quarter before", last.resident/third.resident, 1.1+whenFull(full, 0, 0.4), "")
	atMost(t, "goroutines more than a quarter before", last.goroutines-third.goroutines, 32, "")
	atMost(t, "open files more than a quarter before", last.files-third.files, 32, "")
}

type memory struct {
	resident, heap, kept, goroutines, files float64
}

func memoryOf(ctx context.Context, t *testing.T, n *fleet.Node) memory {
	t.Helper()
	all, err := n.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	get := func(name string) float64 {
		v, err := all.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	status, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return memory{
		resident: get("process_resident_memory_bytes"), heap: get("go_memstats_heap_inuse_bytes"),
		goroutines: get("go_goroutines"), files: get("process_open_fds"),
		kept: float64(status.Tree.Bytes) + float64(applied(ctx, t, n).JournalBytes),
	}
}

func medians(samples [][]memory) memory {
	of := func(field func(*memory) float64) float64 {
		var v []float64
		for _, at := range samples {
			for i := range at {
				v = append(v, field(&at[i]))
			}
		}
		return median(v)
	}
	return memory{
		resident: of(func(m *memory) float64 { return m.resident }), heap: of(func(m *memory) float64 { return m.heap }),
		kept:       of(func(m *memory) float64 { return m.kept }),
		goroutines: of(func(m *memory) float64 { return m.goroutines }), files: of(func(m *memory) float64 { return m.files }),
	}
}

// Command browser starts a fleet with live traffic and shows its dashboard to a real browser: pages.mjs
// opens every page in Chromium and reports console errors, slow first paints, findings of axe-core, and
// whether engines can be drained by keyboard. With -hold it only prints the address and waits.
//
// Up to 64 engines are emulated and serve traffic; further ones are idle: they answer probes and
// questions for their models, and no more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/demo"
	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/workload"
)

const (
	model    = "emulated-8b"
	emulated = 64 // at most; a fleet has addresses for some 200 members
	routers  = 3
	// startTimeout bounds the start of a fleet of 2,000 engines on a busy machine.
	startTimeout = 2 * time.Minute
)

type options struct {
	router, engines, script, shots string

	load     float64
	hold     bool
	paint    time.Duration
	duration time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.router, "router", "bin/grapevine", "the router's program")
	flag.StringVar(&o.engines, "engines", "2,64,2000", "sizes of the fleets, one after the other, separated by commas")
	flag.StringVar(&o.script, "script", "chaos/browser/pages.mjs", "the script, run with node")
	flag.StringVar(&o.shots, "shots", "", "directory for screenshots; none without")
	flag.Float64Var(&o.load, "load", 1, "traffic, as a multiple of the demo's of two engines")
	flag.DurationVar(&o.paint, "paint", time.Second, "the slowest first paint that passes; for an idle machine")
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "longest time for one fleet")
	flag.BoolVar(&o.hold, "hold", false, "start the first fleet, print the addresses and wait for an interrupt")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, size := range strings.Split(o.engines, ",") {
		n, err := strconv.Atoi(size)
		if err == nil {
			err = show(ctx, &o, n)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "browser:", err)
			os.Exit(1)
		}
		if o.hold {
			return
		}
	}
}

// show holds a fleet of n engines under traffic while the script, or the operator, looks at it.
func show(ctx context.Context, o *options, n int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.duration)
	defer cancel()
	binary, err := fleet.FindRouter(o.router)
	if err != nil {
		return err
	}
	idle, err := startIdle(max(n-emulated, 0))
	if err != nil {
		return err
	}
	defer idle.close()
	dir, err := os.MkdirTemp("", "grapevine-browser-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	clients := filepath.Join(dir, "clients.yaml")
	if err := os.WriteFile(clients, []byte(clientsText()), 0o600); err != nil {
		return err
	}
	starting, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	f, err := fleet.Start(starting, fleet.Config{
		Binary: binary, Nodes: routers, Engines: min(n, emulated), Seed: 1, Guarded: n < emulated,
		Log:    zerolog.New(os.Stderr).Level(zerolog.ErrorLevel),
		Engine: engine.ServerConfig{Config: demo.EngineConfig(), Models: []string{model}},
		// The balancer's clients have no keys.
		Settings: map[string]any{"log_level": "warn", "clients_file": clients, "queue_requests": 2048},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := idle.list(starting, f.Nodes()[0]); err != nil {
		return err
	}
	traffic := make(chan error, 1)
	playing, stop := context.WithCancel(ctx)
	go func() { traffic <- play(playing, o, f) }()
	err = look(ctx, o, f, n)
	stop()
	if played := <-traffic; err == nil && !errors.Is(played, context.Canceled) {
		err = played
	}
	return err
}

func play(ctx context.Context, o *options, f *fleet.Fleet) error {
	w := demo.Workload(2, o.duration)
	w.Rate *= o.load
	src, err := w.Source(workload.Options{Seed: 1})
	if err != nil {
		return err
	}
	_, err = replay.Run(ctx, replay.Config{
		Targets: []string{f.URL()}, Model: model, Seed: 1, Timeout: time.Minute, NewConnections: true, Backends: f.EngineNames(),
	}, src)
	return err
}

func look(ctx context.Context, o *options, f *fleet.Fleet, n int) error {
	var addresses []string
	for _, node := range f.Nodes() {
		addresses = append(addresses, "http://"+node.AdminAddr()+"/ui/")
	}
	if o.hold {
		fmt.Println(strings.Join(addresses, "\n"), f.Token())
		<-ctx.Done()
		return nil
	}
	cmd := exec.CommandContext(ctx, "node", o.script, addresses[0])
	cmd.Env = append(os.Environ(), "TOKEN="+f.Token(), "ENGINES="+strconv.Itoa(n), "PAINT_MS="+strconv.FormatInt(o.paint.Milliseconds(), 10), "SHOTS="+o.shots)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its browser
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	fmt.Printf("%d routers, %d engines, %d of them emulated\n", routers, n, min(n, emulated))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s with %d engines: %w", o.script, n, err)
	}
	return nil
}

// clientsText lists clients with keys that no request carries, and one for requests without a key.
func clientsText() string {
	hash := func(c string) string { return strings.Repeat(c, 64) }
	return "anonymous: chat\nclients:\n" +
		"  - {name: chat, key_sha256: " + hash("a") + ", in_flight: 400, tokens_per_minute: 20M}\n" +
		"  - {name: search, key_sha256: " + hash("b") + ", models: [\"emulated*\"], weight: 2}\n" +
		"  - {name: nightly-batch, key_sha256: " + hash("c") + ", priority: batch, paths: [/v1/chat/completions]}\n"
}

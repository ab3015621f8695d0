package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"grapevine/cmd/commandline"
	"grapevine/node"
	"grapevine/node/config"
	"grapevine/node/machine"
	"grapevine/node/notify"
)

type serveCmd struct {
	ConfigFile  string `name:"config" env:"GRAPEVINE_CONFIG" type:"existingfile" placeholder:"FILE" help:"YAML file. Variables override it, flags override both."`
	CheckConfig bool   `name:"check-config" help:"Validate the configuration and exit."`

	Settings config.Config `embed:""`
}

func (c *serveCmd) Run(s *streams, k *kong.Context) error {
	cfg, lines, err := c.configuration(k)
	if err != nil {
		return usageError{err}
	}
	if err := cfg.Validate(c.ConfigFile, lines); err != nil {
		return usageError{err}
	}
	cfg.Level = new(config.LogLevel)
	if cfg.Log, err = config.NewLogger(logTo(s.err, os.Getenv("JOURNAL_STREAM")), commandline.IsTerminal(s.err), cfg); err != nil {
		return usageError{err}
	}
	cfg.Version, cfg.Stdout = version, s.out
	if !c.CheckConfig {
		if cfg.Listener, err = notify.Listener(os.Getenv); err != nil {
			return err
		}
		if cfg.Listener != nil {
			cfg.Log.Info().Str("address", cfg.Listener.Addr().String()).Msg("the data port is the socket that the service manager passed; the setting listen has no effect")
		}
	}
	n, err := node.New(cfg) // starts nothing
	if err != nil {
		return usageError{err}
	}
	if c.CheckConfig {
		_, err := fmt.Fprintf(s.out, "configuration is valid: %d backends, strategy %s\n", len(cfg.Backends), cfg.Strategy)
		return err
	}
	super, err := supervise(n, cfg.Log)
	if err != nil {
		return err
	}
	defer super.close()
	memory, limited := machine.Memory()
	tuneCollector(memory, limited, cfg.Log)
	return runUntilSignal(n, cfg.Log, super, func() error { return c.reload(k, n, cfg.Log) })
}

func (c *serveCmd) reload(k *kong.Context, n *node.Node, log zerolog.Logger) error {
	next, lines, err := c.configuration(k)
	if err != nil {
		return err
	}
	if err := next.Validate(c.ConfigFile, lines); err != nil {
		return err
	}
	done, err := n.Reload(next)
	if err != nil {
		return err
	}
	e := log.Info()
	if len(done.AtNextStart) > 0 {
		e = log.Warn()
	}
	e.Str("event", node.EventReloaded).Strs("applied", done.Applied).Strs("at_next_start", done.AtNextStart).Bool("tls_cert", next.TLSCert != "").Msg("reloaded")
	return nil
}

// configuration merges file, environment and flags, later ones winning; lines maps the file's
// settings to lines.
func (c *serveCmd) configuration(k *kong.Context) (cfg config.Config, lines map[string]int, err error) {
	cfg = config.Default()
	if c.ConfigFile != "" {
		if cfg, lines, err = config.Load(c.ConfigFile); err != nil {
			return cfg, nil, err
		}
	}
	given := make(map[string]bool)
	for _, p := range k.Path {
		if p.Flag != nil {
			given[p.Flag.Name] = true
		}
	}
	for _, setting := range config.Settings() {
		if _, ok := os.LookupEnv(setting.Env); ok || given[setting.Flag] {
			cfg.Overlay(c.Settings, setting)
			delete(lines, setting.Key) // not from the file
		}
	}
	return cfg, lines, nil
}

// runUntilSignal serves until SIGTERM or SIGINT, then drains; a second signal cuts the rest.
func runUntilSignal(n *node.Node, log zerolog.Logger, super *supervision, reload func() error) error {
	signals, reloads := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	super.starting()
	first, err := startUntilSignal(n, signals)
	if first != nil && errors.Is(err, context.Canceled) {
		return nil // canceled as requested
	}
	if err != nil {
		return err
	}
	super.started()
	for first == nil {
		select {
		case first = <-signals:
		case <-reloads:
			super.reloaded(reload)
		case err := <-n.Failed():
			super.stopping()
			_ = n.Stop(context.Background())
			return err
		}
	}
	super.stopping()
	cfg := n.Running()
	grace := cfg.DrainGrace
	if first == syscall.SIGINT {
		grace = 0 // a terminal, not a balancer that needs time to notice
	}
	log.Info().Str("signal", first.String()).Dur("grace", grace).Dur("timeout", cfg.DrainTimeout).Msg("draining")
	ctx, cancel := context.WithTimeoutCause(context.Background(), grace+cfg.DrainClose+cfg.DrainTimeout, errDrainTimeout)
	defer cancel()
	ctx, force := context.WithCancelCause(ctx)
	defer force(nil)
	go func() {
		select {
		case <-signals:
			force(errSecondSignal)
		case <-ctx.Done():
		}
	}()
	n.Drain(ctx, grace)
	err = n.Stop(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func startUntilSignal(n *node.Node, signals <-chan os.Signal) (first os.Signal, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	started := make(chan error, 1)
	go func() { started <- n.Start(ctx) }()
	select {
	case err = <-started:
		return nil, err
	case first = <-signals:
		cancel()
	}
	return first, <-started
}

var (
	errDrainTimeout = errors.New("drain_timeout has passed: what still ran was cut")
	errSecondSignal = errors.New("second signal: what still ran was cut")
)

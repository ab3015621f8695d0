package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/rs/zerolog"

	"grapevine.example/cmd/commandline"
	"grapevine.example/node"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/handover"
	"grapevine.example/node/machine"
	"grapevine.example/node/notify"
)

type serveCmd struct {
	ConfigFile  string `name:"config" env:"GRAPEVINE_CONFIG" type:"existingfile" placeholder:"FILE" help:"YAML file. Variables override it, flags override both."`
	CheckConfig bool   `name:"check-config" help:"Validate the configuration and exit."`

	Settings config.Config `embed:""`
}

func (c *serveCmd) Run(s *streams, call commandline.Call) error {
	from, err := handover.FromEnvironment()
	if err != nil {
		return err
	}
	n, log, err := c.build(s, call, from)
	if from != nil && err != nil {
		return from.Fail(err)
	}
	if err != nil || n == nil {
		return err
	}
	super, err := supervise(n, log)
	if err != nil {
		return err
	}
	defer super.close()
	memory, limited := machine.Memory()
	tuneCollector(memory, limited, log)
	r := &router{node: n, log: log, super: super, from: from, reload: func() error { return c.reload(call, n, log) }}
	return r.runUntilSignal()
}

// build returns the node that the settings describe; nil if it was only to check them.
func (c *serveCmd) build(s *streams, call commandline.Call, from *handover.Predecessor) (*node.Node, zerolog.Logger, error) {
	none := zerolog.Nop()
	cfg, lines, err := c.configuration(call)
	if err != nil {
		return nil, none, usageError{err}
	}
	if err := cfg.Validate(c.ConfigFile, lines); err != nil {
		return nil, none, usageError{err}
	}
	cfg.LogSwitch = new(config.LogSwitch)
	if cfg.Log, err = config.NewLogger(logTo(s.err, os.Getenv("JOURNAL_STREAM")), commandline.IsTerminal(s.err), cfg); err != nil {
		return nil, none, usageError{err}
	}
	cfg.Version, cfg.Stdout = commandline.Version(), s.out
	switch {
	case c.CheckConfig:
	case from != nil:
		cfg.Inherited = inherit(&cfg, from)
	default:
		if cfg.Inherited.Data, err = notify.Listener(os.Getenv); err != nil {
			return nil, none, err
		}
		cfg.Inherited.SocketUnit = cfg.Inherited.Data != nil
	}
	if cfg.Inherited.SocketUnit {
		cfg.Log.Info().Str("address", cfg.Inherited.Data.Addr().String()).Msg("the data port is the socket that the service manager passed; the setting listen has no effect")
	}
	n, err := node.New(cfg) // starts nothing
	if err != nil {
		return nil, none, usageError{err}
	}
	if c.CheckConfig {
		_, err := fmt.Fprintf(s.out, "configuration is valid: %d backends, strategy %s\n", len(cfg.Backends), cfg.Strategy)
		return nil, none, err
	}
	return n, cfg.Log, nil
}

func (c *serveCmd) reload(call commandline.Call, n *node.Node, log zerolog.Logger) error {
	next, lines, err := c.configuration(call)
	if err == nil {
		err = next.Validate(c.ConfigFile, lines)
	}
	var done node.Reloaded
	if err == nil {
		done, err = n.Reload(next)
	}
	if err != nil {
		n.ReloadRefused(err)
		return err
	}
	e := log.Info()
	if len(done.AtNextStart) > 0 {
		e = log.Warn()
	}
	applied, changes := describe(done.Applied)
	waiting, later := describe(done.AtNextStart)
	e.Str("event", node.EventReloaded).Strs("applied", applied).Strs("at_next_start", waiting).Strs("changes", append(changes, later...)).
		Bool("tls_cert", next.TLSCert != "").Msg("reloaded")
	return nil
}

func describe(changes []admin.SettingChange) (keys, texts []string) {
	keys = []string{}
	for _, c := range changes {
		keys, texts = append(keys, c.Key), append(texts, c.String())
	}
	return keys, texts
}

// configuration merges file, environment and flags, later ones winning; lines maps the file's
// settings to lines.
func (c *serveCmd) configuration(call commandline.Call) (cfg config.Config, lines map[string]int, err error) {
	cfg = config.Default()
	if c.ConfigFile != "" {
		if cfg, lines, err = config.Load(c.ConfigFile); err != nil {
			return cfg, nil, err
		}
	}
	for _, setting := range config.Settings() {
		if _, ok := os.LookupEnv(setting.Env); ok || slices.Contains(call.Given, setting.Flag) {
			cfg.Overlay(c.Settings, setting)
			delete(lines, setting.Key) // not from the file
		}
	}
	return cfg, lines, nil
}

// router is one process of a node, from its start to its end.
type router struct {
	node   *node.Node
	log    zerolog.Logger
	super  *supervision
	from   *handover.Predecessor // nil: this process replaces none
	reload func() error
}

// runUntilSignal serves until SIGTERM or SIGINT, or until another process serves in its place, then
// drains; a second signal cuts the rest. It returns after its predecessor has ended.
func (r *router) runUntilSignal() error {
	n, super := r.node, r.super
	signals, reloads, replacements := make(chan os.Signal, 2), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	signal.Notify(replacements, syscall.SIGUSR2)
	defer signal.Stop(replacements)
	first, err := r.start(signals)
	if first != nil && errors.Is(err, context.Canceled) {
		return nil // canceled as requested
	}
	if err != nil {
		return err
	}
	super.started()
	var next *replacement // nil: none runs
	for first == nil {
		reloading := reloads
		if next != nil {
			reloading = nil // afterwards, by the process that serves then
		}
		select {
		case first = <-signals:
			next.callOff()
			if pid := super.successor; pid != 0 { // too late: the signal was meant for the router, which is another process now
				_ = syscall.Kill(pid, first.(syscall.Signal))
			}
		case <-reloading:
			super.reloaded(r.reload)
		case <-replacements:
			if next == nil {
				next = r.replace()
			}
		case err := <-next.ended():
			next = nil
			if err == nil {
				first = syscall.SIGUSR2
			} else {
				r.log.Error().Str("node", n.Name()).Str("component", "replace").Str("event", node.EventReplaceFailed).Err(err).Msg("not replaced: this process serves on")
			}
		case err := <-n.Failed():
			next.callOff()
			super.stopping()
			_ = n.Stop(context.Background())
			return err
		}
	}
	super.stopping()
	cfg := n.Running()
	grace := cfg.DrainGrace
	if first != syscall.SIGTERM {
		grace = 0 // a terminal or a successor, not a balancer that needs time to notice
	}
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
	r.from.AwaitEnd(ctx) // else its requests would end with this process, which the manager supervises
	n.EndReports()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// start starts the node, and takes over from the predecessor, if any.
func (r *router) start(signals <-chan os.Signal) (first os.Signal, err error) {
	if r.from == nil {
		r.super.starting()
		return startUntilSignal(r.node, signals)
	}
	if err := r.takeOver(signals); err != nil {
		return nil, r.from.Fail(err)
	}
	r.log.Info().Str("node", r.node.Name()).Str("component", "replace").Str("event", node.EventTookOver).Msg("took over")
	return nil, nil
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

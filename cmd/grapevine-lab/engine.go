package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"grapevine.example/chaos/engine"
	"grapevine.example/cmd/commandline"
	"grapevine.example/node/config"
)

type engineCmd struct {
	Listen string `name:"listen" default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address to listen on."`

	engine.ServerConfig `embed:""`

	LogLevel string `name:"log-level" default:"info" placeholder:"LEVEL" group:"server" help:"debug, info, warn or error."`
}

// Help is shown below the flags.
func (engineCmd) Help() string {
	return "It speaks OpenAI's and Anthropic's APIs, with invented text in place of a model. POST /emulator/cached says what it would serve from its cache, /emulator/fault makes it fail, /emulator/stats counts."
}

func (c *engineCmd) Run(s *streams) error {
	log, err := config.NewLogger(s.err, commandline.IsTerminal(s.err), config.Config{LogLevel: c.LogLevel, LogFormat: "auto"})
	if err != nil {
		return usageError{err}
	}
	c.Log = log
	srv, err := engine.NewServer(c.ServerConfig)
	if errors.Is(err, engine.ErrConfig) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	defer func() { _ = srv.Close() }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	log.Info().Str("listen", ln.Addr().String()).Strs("models", c.Models).Msg("emulated engine is serving")
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	return srv.Serve(ln)
}

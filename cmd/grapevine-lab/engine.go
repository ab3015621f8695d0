package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"grapevine/chaos/engine"
	"grapevine/cmd/commandline"
	"grapevine/node/config"
)

type engineCmd struct {
	Listen string `name:"listen" default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address to listen on."`

	engineFlags `embed:""`

	Model          []string `name:"model" default:"emulated" placeholder:"NAME" group:"server" help:"Name of the model. Repeatable: all names mean the same model."`
	Adapter        []string `name:"adapter" placeholder:"NAME" group:"server" help:"LoRA adapter: a name and a cache of its own. Repeatable."`
	MaxModelLen    int      `name:"max-model-len" placeholder:"N" group:"server" help:"Most tokens of prompt and reply together. Default: the size of the KV memory."`
	DefaultOutput  int      `name:"default-output" placeholder:"N" group:"server" help:"Tokens of a reply if the request names no length. Default 64."`
	TokensPerChunk int      `name:"tokens-per-chunk" placeholder:"N" group:"server" help:"Tokens in one event of a stream. Default 1."`
	Metrics        string   `name:"metrics" enum:"vllm,sglang" default:"vllm" group:"server" help:"Names of the metrics: vllm or sglang."`
	HideCached     bool     `name:"hide-cached" group:"server" help:"Do not report cached tokens, as engines do by default."`
	LateHeaders    bool     `name:"late-headers" group:"server" help:"Answer streams with the first token instead of at once."`
	LogLevel       string   `name:"log-level" default:"info" placeholder:"LEVEL" group:"server" help:"debug, info, warn or error."`
}

// Help is shown below the flags.
func (engineCmd) Help() string {
	return "It speaks OpenAI's, Anthropic's and SGLang's APIs, with invented text in place of a model. POST /emulator/cached says what it would serve from its cache, /emulator/fault makes it fail, /emulator/stats counts."
}

func (c *engineCmd) Run(s *streams) error {
	log, err := config.NewLogger(s.err, commandline.IsTerminal(s.err), config.Config{LogLevel: c.LogLevel, LogFormat: "auto"})
	if err != nil {
		return usageError{err}
	}
	srv, err := engine.NewServer(engine.ServerConfig{
		Config: c.config(), Models: c.Model, Adapters: c.Adapter, MaxModelLen: c.MaxModelLen, DefaultOutput: c.DefaultOutput,
		TokensPerChunk: c.TokensPerChunk, MetricsStyle: engine.MetricsStyle(c.Metrics), HideCached: c.HideCached,
		LateHeaders: c.LateHeaders, Version: version, Log: log,
	})
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
	log.Info().Str("listen", ln.Addr().String()).Strs("models", c.Model).Msg("emulated engine is serving")
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	return srv.Serve(ln)
}

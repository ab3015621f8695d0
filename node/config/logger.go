package config

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// LogLevel is the least level that a logger writes; safe for concurrent use.
type LogLevel struct{ least atomic.Int32 }

// Sample implements zerolog.Sampler.
func (l *LogLevel) Sample(of zerolog.Level) bool { return of >= zerolog.Level(l.least.Load()) }

func (l *LogLevel) Set(least zerolog.Level) { l.least.Store(int32(least)) }

// NewLogger builds the configured logger, which follows cfg.Level if set. On a terminal, "auto"
// means text.
func NewLogger(w io.Writer, terminal bool, cfg Config) (zerolog.Logger, error) {
	level, err := ParseLevel(cfg.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	if cfg.LogFormat == "console" || cfg.LogFormat == "auto" && terminal {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !terminal}
	}
	log := zerolog.New(w).With().Timestamp().Logger()
	if cfg.Level == nil {
		return log.Level(level), nil
	}
	cfg.Level.Set(level)
	return log.Sample(cfg.Level), nil
}

// ParseLevel rejects the empty string and numbers, which zerolog would accept.
func ParseLevel(name string) (zerolog.Level, error) {
	switch name {
	case "debug", "info", "warn", "error":
		return zerolog.ParseLevel(name)
	}
	return zerolog.NoLevel, fmt.Errorf("log level %q is none of debug, info, warn and error", name)
}

package node

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// LogLevel is the least severe level that a logger writes, and can change while it is in
// use. Safe for concurrent use.
type LogLevel struct{ least atomic.Int32 }

// Sample implements zerolog.Sampler: a line below the level is not even built.
func (l *LogLevel) Sample(of zerolog.Level) bool { return of >= zerolog.Level(l.least.Load()) }

func (l *LogLevel) set(least zerolog.Level) { l.least.Store(int32(least)) }

// NewLogger builds the logger that a configuration asks for, writing to w.
// terminal says whether w is one: the "auto" format is for people there and
// JSON elsewhere. With a cfg.Level the logger filters by that, which begins with log_level.
func NewLogger(w io.Writer, terminal bool, cfg Config) (zerolog.Logger, error) {
	level, err := parseLevel(cfg.LogLevel)
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
	cfg.Level.set(level)
	return log.Sample(cfg.Level), nil
}

// parseLevel takes the four levels that are written; zerolog would take more
// (the empty string, numbers), which in a configuration are mistakes.
func parseLevel(name string) (zerolog.Level, error) {
	switch name {
	case "debug", "info", "warn", "error":
		return zerolog.ParseLevel(name)
	}
	return zerolog.NoLevel, fmt.Errorf("log level %q is none of debug, info, warn and error", name)
}

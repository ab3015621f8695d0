package node

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
)

// NewLogger builds the logger that a configuration asks for, writing to w.
// terminal says whether w is one: the "auto" format is for people there and
// JSON elsewhere.
func NewLogger(w io.Writer, terminal bool, cfg Config) (zerolog.Logger, error) {
	level, err := parseLevel(cfg.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	if cfg.LogFormat == "console" || cfg.LogFormat == "auto" && terminal {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !terminal}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
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

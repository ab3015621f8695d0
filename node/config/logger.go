package config

import (
	"cmp"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// LogSwitch changes a logger of NewLogger while it is in use. Safe for concurrent use.
type LogSwitch struct {
	least    atomic.Int32
	text     atomic.Bool // for people; else JSON
	terminal bool
}

// Sample implements zerolog.Sampler.
func (s *LogSwitch) Sample(of zerolog.Level) bool { return of >= zerolog.Level(s.least.Load()) }

// Set sets the least level that is written, and the form. On a terminal, "auto" means text.
func (s *LogSwitch) Set(least zerolog.Level, format string) {
	s.least.Store(int32(least))
	s.text.Store(format == "console" || format == "auto" && s.terminal)
}

// Text reports whether the lines are text for people.
func (s *LogSwitch) Text() bool { return s.text.Load() }

// logWriter writes each line in the form that its switch says.
type logWriter struct {
	zerolog.LevelWriter
	text zerolog.ConsoleWriter
	by   *LogSwitch
}

func (w *logWriter) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	if w.by.Text() {
		return w.text.Write(line)
	}
	return w.LevelWriter.WriteLevel(level, line)
}

// NewLogger builds the configured logger, which follows cfg.LogSwitch if set.
func NewLogger(w io.Writer, terminal bool, cfg Config) (zerolog.Logger, error) {
	level, err := ParseLevel(cfg.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	by := cmp.Or(cfg.LogSwitch, new(LogSwitch))
	by.terminal = terminal
	by.Set(level, cfg.LogFormat)
	lines, ok := w.(zerolog.LevelWriter)
	if !ok {
		lines = zerolog.LevelWriterAdapter{Writer: w}
	}
	text := zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !terminal}
	return zerolog.New(&logWriter{lines, text, by}).With().Timestamp().Logger().Sample(by), nil
}

// ParseLevel rejects the empty string and numbers, which zerolog would accept.
func ParseLevel(name string) (zerolog.Level, error) {
	switch name {
	case "debug", "info", "warn", "error":
		return zerolog.ParseLevel(name)
	}
	return zerolog.NoLevel, fmt.Errorf("log level %q is none of debug, info, warn and error", name)
}

package raftstore

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/rs/zerolog"
)

const quiet = 10 * time.Second

// raftLog logs each of raft's messages at most once per quiet, one level lower, because raft
// reports every missed heartbeat as an error.
type raftLog struct {
	log zerolog.Logger

	mu   sync.Mutex
	last map[string]time.Time
}

func newRaftLog(l zerolog.Logger) hclog.Logger {
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard})
	logger.RegisterSink(&raftLog{log: l, last: make(map[string]time.Time)})
	return logger
}

func (r *raftLog) Accept(_ string, level hclog.Level, msg string, args ...any) {
	var to zerolog.Level
	switch level {
	case hclog.Error:
		to = zerolog.WarnLevel
	case hclog.Warn:
		to = zerolog.InfoLevel
	case hclog.Info:
		to = zerolog.DebugLevel
	default:
		to = zerolog.TraceLevel
	}
	if to < r.log.GetLevel() || to < zerolog.GlobalLevel() || r.repeated(msg) {
		return
	}
	e := r.log.WithLevel(to)
	for i := 0; i+1 < len(args); i += 2 {
		key, ok := args[i].(string)
		if !ok {
			continue
		}
		switch v := args[i+1].(type) {
		case error:
			e = e.Str(strings.ReplaceAll(key, "error", "err"), v.Error())
		case hclog.Format:
			// hclog.Format holds a configuration
		case fmt.Stringer:
			e = e.Stringer(key, v)
		default:
			e = e.Interface(key, v)
		}
	}
	e.Msg("raft: " + msg)
}

// repeated keeps one time per text; raft has few texts.
func (r *raftLog) repeated(msg string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.last[msg]) < quiet {
		return true
	}
	r.last[msg] = now
	return false
}

package raftstore

import (
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/rs/zerolog"
)

// quiet is how long a message is not repeated, because raft logs each missed heartbeat.
const quiet = 10 * time.Second

// raftLog logs raft's messages one level lower, as raft reports every unreachable peer as an error,
// and each text at most once per quiet.
type raftLog struct {
	hclog.Logger // discards
	log          zerolog.Logger
	args         []any

	shared *raftLogTimes
}

type raftLogTimes struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newRaftLog(l zerolog.Logger) hclog.Logger {
	return raftLog{Logger: hclog.NewNullLogger(), log: l, shared: &raftLogTimes{last: make(map[string]time.Time)}}
}

func (r raftLog) Log(level hclog.Level, msg string, args ...any) {
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
	for _, list := range [][]any{r.args, args} {
		for i := 0; i+1 < len(list); i += 2 {
			key, ok := list[i].(string)
			if !ok {
				continue
			}
			switch v := list[i+1].(type) {
			case error:
				e = e.Str(strings.ReplaceAll(key, "error", "err"), v.Error())
			case hclog.Format:
				// skip a configuration's format and arguments
			case fmt.Stringer:
				e = e.Stringer(key, v)
			default:
				e = e.Interface(key, v)
			}
		}
	}
	e.Msg("raft: " + msg)
}

// repeated keeps one time per text; raft has few texts.
func (r raftLog) repeated(msg string) bool {
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	now := time.Now()
	if now.Sub(r.shared.last[msg]) < quiet {
		return true
	}
	r.shared.last[msg] = now
	return false
}

func (r raftLog) Trace(msg string, args ...any) { r.Log(hclog.Trace, msg, args...) }
func (r raftLog) Debug(msg string, args ...any) { r.Log(hclog.Debug, msg, args...) }
func (r raftLog) Info(msg string, args ...any)  { r.Log(hclog.Info, msg, args...) }
func (r raftLog) Warn(msg string, args ...any)  { r.Log(hclog.Warn, msg, args...) }
func (r raftLog) Error(msg string, args ...any) { r.Log(hclog.Error, msg, args...) }

func (r raftLog) With(args ...any) hclog.Logger {
	r.args = append(append([]any(nil), r.args...), args...)
	return r
}

func (r raftLog) Named(string) hclog.Logger      { return r }
func (r raftLog) ResetNamed(string) hclog.Logger { return r }

func (r raftLog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(io.Discard, "", 0)
}

package member

import (
	"bytes"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// limiter limits log lines, so that garbage from the network cannot fill a disk. Safe for
// concurrent use.
type limiter struct {
	burst, perSecond float64
	now              func() time.Time

	mu      sync.Mutex
	tokens  float64
	last    time.Time
	skipped int
}

func newLimiter(burst, perSecond float64) *limiter {
	return &limiter{burst: burst, perSecond: perSecond, now: time.Now, tokens: burst}
}

// allow also returns the number of lines suppressed since the last.
func (l *limiter) allow() (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !l.last.IsZero() {
		l.tokens = min(l.burst, l.tokens+now.Sub(l.last).Seconds()*l.perSecond)
	}
	l.last = now
	if l.tokens < 1 {
		l.skipped++
		return 0, false
	}
	l.tokens--
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}

// logBridge passes memberlist's lines to zerolog. One Write is one line.
type logBridge struct {
	log   zerolog.Logger
	limit *limiter
}

var bridgeLevels = []struct {
	prefix []byte
	level  zerolog.Level
}{
	{[]byte("[DEBUG] "), zerolog.DebugLevel},
	{[]byte("[INFO] "), zerolog.InfoLevel},
	{[]byte("[WARN] "), zerolog.WarnLevel},
	// memberlist's errors are unusable packets and streams, which gossip repairs.
	{[]byte("[ERR] "), zerolog.WarnLevel},
	{[]byte("[ERROR] "), zerolog.WarnLevel},
}

const maxLogLine = 300

func (b *logBridge) Write(line []byte) (int, error) {
	n := len(line)
	level := zerolog.InfoLevel
	for _, l := range bridgeLevels {
		if rest, ok := bytes.CutPrefix(line, l.prefix); ok {
			line, level = rest, l.level
			break
		}
	}
	if level < b.log.GetLevel() || level < zerolog.GlobalLevel() {
		return n, nil
	}
	skipped, ok := b.limit.allow()
	if !ok {
		return n, nil
	}
	e := b.log.WithLevel(level)
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("memberlist: "))
	if skipped > 0 {
		e = e.Int("skipped", skipped)
	}
	e.Str("text", clean(string(line), maxLogLine)).Msg("memberlist")
	return n, nil
}

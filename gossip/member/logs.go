package member

import (
	"bytes"
	"time"

	"github.com/rs/zerolog"
)

// Garbage from the network must not fill a disk.
func limited(log zerolog.Logger, burst uint32, period time.Duration) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: burst, Period: period})
}

// logBridge takes one memberlist line per Write.
type logBridge struct{ log zerolog.Logger }

const maxLogLine = 300

func (b logBridge) Write(line []byte) (int, error) {
	level, text := zerolog.InfoLevel, bytes.TrimSpace(line)
	if prefix, rest, ok := bytes.Cut(text, []byte("] ")); ok {
		text = rest
		switch string(prefix) {
		case "[DEBUG":
			level = zerolog.DebugLevel
		case "[WARN", "[ERR", "[ERROR":
			// memberlist's errors are unusable packets and streams, which gossip repairs.
			level = zerolog.WarnLevel
		}
	}
	text = bytes.TrimPrefix(text, []byte("memberlist: "))
	b.log.WithLevel(level).Str("text", clean(string(text), maxLogLine)).Msg("memberlist")
	return len(line), nil
}

package main

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/rs/zerolog"
)

// journalWriter begins each line with its priority ("<4>{...}") for journald (sd-daemon(3)).
type journalWriter struct{ io.Writer }

func (w journalWriter) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	priority := byte('6')
	switch level {
	case zerolog.DebugLevel, zerolog.TraceLevel:
		priority = '7'
	case zerolog.WarnLevel:
		priority = '4'
	case zerolog.ErrorLevel:
		priority = '3'
	case zerolog.FatalLevel, zerolog.PanicLevel:
		priority = '2'
	}
	if _, err := w.Write(append([]byte{'<', priority, '>'}, line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// logTo wraps w if journald reads it: JOURNAL_STREAM holds that stream's device and inode.
func logTo(w io.Writer, stream string) io.Writer {
	f, ok := w.(*os.File)
	if !ok || stream == "" {
		return w
	}
	info, err := f.Stat()
	if err != nil {
		return w
	}
	if s, ok := info.Sys().(*syscall.Stat_t); !ok || fmt.Sprintf("%d:%d", s.Dev, s.Ino) != stream {
		return w
	}
	return journalWriter{w}
}

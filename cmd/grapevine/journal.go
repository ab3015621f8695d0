package main

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/rs/zerolog"
)

// journalWriter puts the priority in front of each log line ("<4>{...}"), which journald
// takes off and stores (sd-daemon(3), SyslogLevelPrefix). Without it all lines have
// priority 6, and journalctl -p warning shows none.
type journalWriter struct{ io.Writer }

// WriteLevel implements zerolog.LevelWriter.
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

// logTo returns w, or a journalWriter to it if journald reads w. stream is the value of
// JOURNAL_STREAM, in which systemd names the device and inode of that stream
// (systemd.exec(5)).
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

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
)

func TestJournalPriority(t *testing.T) {
	for _, own := range []bool{true, false} {
		file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		s := info.Sys().(*syscall.Stat_t)
		stream := fmt.Sprintf("%d:%d", s.Dev, s.Ino)
		if !own {
			stream = fmt.Sprintf("%d:%d", s.Dev, s.Ino+1)
		}
		cmd := command(t, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "debug")
		cmd.Env = append(cmd.Env, "JOURNAL_STREAM="+stream)
		cmd.Stderr = file
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		read := func() string {
			text, err := os.ReadFile(file.Name())
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		eventually(t, "it serves without backends", func() bool { return strings.Contains(read(), "no backends") })
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for line := range strings.Lines(read()) {
			var got struct{ Level string }
			prefix := ""
			if own && len(line) > 3 {
				prefix, line = line[:3], line[3:]
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%q is no JSON: %v", line, err)
			}
			seen[got.Level] = true
			if want := map[string]string{"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}[got.Level]; own && prefix != want {
				t.Errorf("level %s with %q", got.Level, prefix)
			}
		}
		if !seen["info"] || !seen["warn"] {
			t.Errorf("levels seen: %v", seen)
		}
	}
}

// Every level has the priority by which journalctl -p finds it (sd-daemon(3)).
func TestJournalPriorities(t *testing.T) {
	for level, want := range map[zerolog.Level]string{
		zerolog.TraceLevel: "<7>", zerolog.DebugLevel: "<7>", zerolog.InfoLevel: "<6>", zerolog.WarnLevel: "<4>", zerolog.ErrorLevel: "<3>",
		zerolog.FatalLevel: "<2>", zerolog.PanicLevel: "<2>", zerolog.NoLevel: "<6>",
	} {
		var out bytes.Buffer
		log := zerolog.New(journalWriter{&out}).Level(zerolog.TraceLevel)
		if level >= zerolog.FatalLevel && level < zerolog.NoLevel { // zerolog would end the process
			_, _ = journalWriter{&out}.WriteLevel(level, []byte("{}\n"))
		} else {
			log.WithLevel(level).Msg("text")
		}
		if !strings.HasPrefix(out.String(), want+"{") {
			t.Errorf("%v: %q, want %s", level, out.String(), want)
		}
	}
}

package node

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"grapevine.example/node/config"
)

var update = flag.Bool("update", false, "write the generated parts of docs/operate.md")

const operateFile = "../docs/operate.md"

// TestOperateReference compares the contents and the tables of docs/operate.md with its headings, Config, Events and a node's
// metrics. A counter ends in _total; other metrics without a type are gauges.
func TestOperateReference(t *testing.T) {
	text, err := os.ReadFile(operateFile)
	if err != nil {
		t.Fatal(err)
	}
	want := replaceSection(t, text, "settings", settingsTable())
	want = replaceSection(t, want, "metrics", metricsTable(t))
	want = replaceSection(t, want, "events", eventsTable())
	want = replaceSection(t, want, "contents", contents(text))
	if bytes.Equal(text, want) {
		return
	}
	if *update {
		if err := os.WriteFile(operateFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, line := range strings.Split(string(want), "\n") {
		if !bytes.Contains(text, []byte(line+"\n")) {
			t.Errorf("docs/operate.md lacks:\n%s", line)
		}
	}
	for _, line := range strings.Split(string(text), "\n") {
		if !bytes.Contains(want, []byte(line+"\n")) && line != "" {
			t.Errorf("docs/operate.md is out of date:\n%s", line)
		}
	}
	t.Error("to write it: go test ./node -run TestOperateReference -update")
}

// TestSettingsThatWait: docs/operate.md says of each setting that no reload applies why it waits for a restart.
func TestSettingsThatWait(t *testing.T) {
	text, err := os.ReadFile(operateFile)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\nOther settings wait for a restart")
	table, _, _ = strings.Cut(table, "\n<!-- settings")
	var listed []string
	for line := range strings.Lines(table) {
		if keys, _, found := strings.Cut(strings.TrimPrefix(line, "| "), " | "); found && strings.HasPrefix(keys, "`") {
			listed = append(listed, strings.Split(strings.Trim(keys, "`"), "`, `")...)
		}
	}
	for _, s := range config.Settings() {
		waits := s.Reload == "" || s.Reload == config.ReloadKeys
		if waits != slices.Contains(listed, s.Key) {
			t.Errorf("%s has reload %q: list it as one that waits for a restart, or do not", s.Key, s.Reload)
		}
		listed = slices.DeleteFunc(listed, func(key string) bool { return key == s.Key })
	}
	if len(listed) > 0 {
		t.Errorf("no settings: %v", listed)
	}
}

func replaceSection(t *testing.T, text []byte, name, content string) []byte {
	t.Helper()
	open, shut := []byte("<!-- "+name+": "), []byte("<!-- /"+name+" -->")
	from := bytes.Index(text, open)
	to := bytes.Index(text, shut)
	if from < 0 || to < from {
		t.Fatalf("%s has no section %s", operateFile, name)
	}
	from += bytes.IndexByte(text[from:], '\n') + 1
	return slices.Concat(text[:from], []byte(content), text[to:])
}

// contents lists the sections of a page, and in the same line what they are divided into.
func contents(page []byte) string {
	var b strings.Builder
	between := ": "
	for line := range strings.Lines(string(page)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			title = strings.TrimSpace(title)
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "- [%s](#%s)", title, anchor(title))
			between = ": "
		} else if title, ok := strings.CutPrefix(line, "### "); ok {
			title = strings.TrimSpace(title)
			fmt.Fprintf(&b, "%s[%s](#%s)", between, title, anchor(title))
			between = ", "
		}
	}
	b.WriteByte('\n')
	return b.String()
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| key | default | what |\n|---|---|---|\n")
	for _, s := range config.Settings() {
		def := "`" + s.Default + "`"
		if s.Default == "" {
			def = "-"
		}
		what := strings.ReplaceAll(s.Help, "|", `\|`)
		if s.Reload != "" {
			what += " (reload: " + s.Reload + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Key, def, what)
	}
	return b.String()
}

func eventsTable() string {
	var b strings.Builder
	b.WriteString("| event | priority | when, and what the line has beside it |\n|---|---|---|\n")
	for _, e := range Events() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Name, priorities[e.Level], e.Meaning)
	}
	return b.String()
}

// priorities are journald's names of levels (journalctl -p).
var priorities = map[zerolog.Level]string{zerolog.InfoLevel: "info", zerolog.WarnLevel: "warning", zerolog.ErrorLevel: "err"}

func metricsTable(t *testing.T) string {
	t.Helper()
	families, err := everyMetric(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| metric | what |\n|---|---|\n")
	for _, f := range families {
		name := f.GetName()
		if ofTheRuntime(name) {
			continue // named by the runtime's version
		}
		if !strings.HasPrefix(name, "grapevine_") {
			t.Errorf("%s does not carry the prefix", name)
		}
		var names []string
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(names, l.GetName()) {
					names = append(names, l.GetName())
				}
			}
		}
		what := f.GetHelp()
		if kind := strings.ToLower(f.GetType().String()); kind == "histogram" || strings.HasSuffix(name, "_total") != (kind == "counter") {
			what += " (" + kind + ")"
		}
		if len(names) > 0 {
			name += "{" + strings.Join(names, ",") + "}"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, what)
	}
	b.WriteString("\nThe metrics of the Go runtime and of the process follow as `go_*` and `process_*`.\n")
	return b.String()
}

func ofTheRuntime(metric string) bool {
	return strings.HasPrefix(metric, "go_") || strings.HasPrefix(metric, "process_")
}

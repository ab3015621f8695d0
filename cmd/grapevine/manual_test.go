package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grapevine.example/cmd/commandline/manual"
	"grapevine.example/node/config"
)

// At release time the test writes what it checks.
var (
	manualDir  = flag.String("manual", "", "write manual pages and completions into this directory")
	manualFrom = flag.String("manual-source", "grapevine", "program and version, as manual pages show them")
	manualDate = flag.String("manual-date", "2026-01-01", "date of the manual pages")
)

// settingsPage is grapevine.yaml(5).
func settingsPage() manual.Page {
	p := manual.Page{Name: "grapevine.yaml", Chapter: 5, Summary: "configuration of the router grapevine", Sections: []manual.Section{
		{Title: "DESCRIPTION", Text: "A YAML mapping of settings. Unknown keys are errors; grapevine serve --check-config validates the file. " +
			"A setting's variable overrides the file, and its flag overrides both. Durations are written as 300ms, 30s or 1h30m, sizes as 65536, 64KiB or 1GiB. " +
			"systemctl reload grapevine applies the settings that say so; others wait for a restart."},
		{Title: "SETTINGS"},
	}}
	titles := make(map[string]string)
	for _, g := range groups {
		titles[g.Key] = strings.TrimSuffix(g.Title, ":")
	}
	group := ""
	for _, s := range config.Settings() {
		if s.Group != group {
			group = s.Group
			p.Sections = append(p.Sections, manual.Section{Title: titles[group], Sub: true})
		}
		text := s.Help
		if s.Default != "" {
			text += " Default: " + s.Default + "."
		}
		switch s.Reload {
		case config.ReloadValue:
			text += " A reload applies it."
		case config.ReloadFile:
			text += " A reload reads the file again."
		case config.ReloadKeys:
			text += " A reload applies api_key, api_key_file and ca_file."
		}
		last := &p.Sections[len(p.Sections)-1]
		last.Entries = append(last.Entries, manual.Entry{Term: s.Key, Text: text})
	}
	p.Sections = append(p.Sections,
		manual.Section{Title: "FILES", Entries: []manual.Entry{
			{Term: "/etc/grapevine/grapevine.yaml", Text: "The configuration of the service."},
			{Term: "/usr/share/doc/grapevine/operate.md", Text: "How to operate a fleet."},
		}},
		manual.Section{Title: "SEE ALSO", Text: "grapevine(1), grapevine-serve(1)"})
	return p
}

func manualFiles() map[string][]byte {
	model := program(&streams{strings.NewReader(""), io.Discard, io.Discard}).Model(&cli{})
	files := map[string][]byte{
		"completion/grapevine.bash": manual.Bash(model),
		"completion/_grapevine":     manual.Zsh(model),
		"completion/grapevine.fish": manual.Fish(model),
	}
	for _, p := range append(manual.Pages(model, []string{"grapevine.yaml(5)"}), settingsPage()) {
		files["man/"+p.File()] = p.Roff(*manualFrom, *manualDate)
	}
	return files
}

func TestManual(t *testing.T) {
	files := manualFiles()
	if *manualDir != "" {
		for name, text := range files {
			path := filepath.Join(*manualDir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, wants := range map[string][]string{
		"man/grapevine.1":          {".TH \"GRAPEVINE\" 1", "grapevine \\- a router for LLM inference", ".B serve", "grapevine\\-backends(1)", ".B 2\nWrong usage."},
		"man/grapevine-backends.1": {"grapevine backends drain <name> ... [flags]", ".SS \"backends drain\"", ".B \\-\\-reason=TEXT", ".SH \"FLAGS\"\n.SS \"General\"\n"},
		"man/grapevine-serve.1":    {".SS \"Queue\"", ".B \\-\\-max\\-body=BYTES\n", "Default: 32MiB. Variable: GRAPEVINE_MAX_BODY."},
		"man/grapevine-version.1":  {"grapevine version"},
		"man/grapevine.yaml.5":     {".B max_body\n", "Default: 32MiB.", ".SS \"Timeouts\""},
	} {
		for _, want := range wants {
			if !bytes.Contains(files[name], []byte(want)) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
	}
	// Flags that each command of a page has stand there once.
	if n := bytes.Count(files["man/grapevine-backends.1"], []byte(".B \\-\\-admin\\-token\\-file=FILE\n")); n != 1 {
		t.Errorf("--admin-token-file is explained %d times in grapevine-backends(1)", n)
	}
	for name, page := range files {
		if !strings.HasPrefix(name, "man/") {
			continue
		}
		for line := range strings.Lines(string(page)) {
			macro, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			known := slices.Contains([]string{".TH", ".SH", ".SS", ".TP", ".B", ".PP", ".nf", ".fi", ".nh", ".ad"}, macro)
			if macro == "" || strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !known {
				t.Errorf("%s: %q is no text and no request of man(7)", name, line)
			}
		}
	}
}

// The test types command lines into bash, and presses tab.
func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "grapevine.bash")
	if err := os.WriteFile(script, manualFiles()["completion/grapevine.bash"], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"serv":                            "serve",
		"backends dr":                     "drain",
		"backends drain --re":             "--reason",
		"backends drain --reason drain ":  "",
		"backends --cons":                 "--consistent", // of the default command
		"backends add --role = pre":       "prefill",
		"backends add --role dec":         "decode",
		"serve --response-headers = ":     "none route all",
		"serve --config ru":               "rules.yaml",
		"serve --max-body 1 --max-body-m": "--max-body-memory",
		"rules apply ru":                  "rules.yaml",
		"keys list ru":                    "",
		"version serv":                    "",
	} {
		words := strings.Split("grapevine "+line, " ")
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = fmt.Sprintf("%q", w)
		}
		cmd := exec.Command(bash, "--norc", "-c", fmt.Sprintf("set -u; source %q; COMP_WORDS=(%s) COMP_CWORD=%d; _grapevine; echo \"${COMPREPLY[*]}\"", script, strings.Join(quoted, " "), len(words)-1))
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q completes to %q, want %q (%v)", line, got, want, err)
		}
	}
}

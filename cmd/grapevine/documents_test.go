package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"grapevine.example/node/admin"
)

const repository = "../.."

// block is a fenced block of a document.
type block struct {
	file    string // below the repository
	section string // its heading
	line    int    // of its first line, from 1
	info    string // "sh machine"
	text    string
}

// kinds are the blocks that the documents with recipes may have. TestRecipes runs blocks of kind sh and the commands behind $ in console.
var kinds = map[string]string{
	"sh":         "TestRecipes runs it",
	"sh machine": "make test-packages runs it on a booted machine: it needs systemd and a package",
	"sh slow":    "it takes minutes: make chaos and chaos-short run the like",
	"sh engine":  "it needs a real engine: make test-engines",
	"console":    "TestRecipes runs what stands behind $",
	"":           "what a program prints",
	"text":       "what a program prints, or formulas",
	"yaml":       "a configuration",
	"json":       "a file",
}

// blocks returns the fenced blocks of a document in their order.
func blocks(t *testing.T, file string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	section, inside, number := "", false, 0
	for line := range strings.Lines(string(text)) {
		number++
		info, fence := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case fence && inside:
			inside = false
		case fence:
			inside = true
			all = append(all, block{file: file, section: section, line: number + 1, info: info})
		case inside:
			all[len(all)-1].text += line
		case strings.HasPrefix(line, "#"):
			section = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	if inside {
		t.Fatalf("%s: the last fence is open", file)
	}
	return all
}

// The documents with recipes say of each block what it is, so that no command is left out of TestRecipes unseen.
func TestBlocksOfDocuments(t *testing.T) {
	for _, file := range []string{"README.md", "docs/operate.md"} {
		text, err := os.ReadFile(filepath.Join(repository, file))
		if err != nil {
			t.Fatal(err)
		}
		inside, before := false, ""
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "```") {
				inside = !inside
			}
			if !inside && before == "" && strings.HasPrefix(line, "    ") {
				t.Errorf("%s:%d: write a fenced block that says what it is", file, i+1)
			}
			before = line
		}
		for _, b := range blocks(t, file) {
			if _, ok := kinds[b.info]; !ok {
				t.Errorf("%s:%d: a block of the unknown kind %q", file, b.line-1, b.info)
			}
		}
	}
}

// Each configuration that docs/operate.md shows is valid.
func TestConfigurationsOfDocuments(t *testing.T) {
	dir := t.TempDir()
	key, _ := admin.NewGossipKey()
	for name, text := range map[string]string{"secret": fleetSecret, "gossip.key": key, "otlp": "Authorization: Bearer KEY\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash := 0
	checked := 0
	for _, b := range blocks(t, "docs/operate.md") {
		check := []string{"serve", "--check-config", "--config"}
		switch {
		case b.info != "yaml" || strings.HasPrefix(b.text, "scrape_configs:"):
			continue
		case strings.HasPrefix(b.text, "clients:"):
			check = []string{"clients", "check"}
		}
		text := regexp.MustCompile(`[0-9a-f]{4}[.]{3}`).ReplaceAllStringFunc(b.text, func(string) string { hash++; return fmt.Sprintf("%064x", hash) })
		text = strings.NewReplacer("/etc/grapevine", dir, "/var/lib/grapevine", dir).Replace(text)
		file := filepath.Join(dir, "file.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		checked++
		if got := grapevine(t, "", append(check, file)...); got.code != 0 {
			t.Errorf("%s:%d: %s", b.file, b.line, got.err)
		}
	}
	if checked < 6 {
		t.Errorf("only %d configurations were found", checked)
	}
}

// lab builds grapevine-lab.
func lab(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "grapevine-lab")
	if out, err := exec.Command("go", "build", "-o", program, "../grapevine-lab").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// Each command and target that a document names exists, with its flags and variables. This covers commands in the text and in blocks that
// TestRecipes does not run.
func TestCommandsOfDocuments(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	labProgram := lab(t)
	helps := make(map[string]string)
	help := func(tool string, words []string) string {
		key := strings.Join(append([]string{tool}, words...), " ")
		if _, ok := helps[key]; !ok {
			cmd := command(t, append(slices.Clone(words), "--help")...)
			if tool == "grapevine-lab" {
				cmd.Path = labProgram
			}
			if got := finish(t, cmd, ""); got.code == 0 && strings.HasPrefix(got.out, "Usage: "+key+" ") {
				helps[key] = got.out
			} else {
				helps[key] = ""
			}
		}
		return helps[key]
	}
	for _, file := range documents(t) {
		for _, c := range commandsOf(t, file) {
			var wrong error
			if c.words[0] == "make" {
				wrong = checkMake(string(makefile), c.words[1:])
			} else {
				wrong = checkCommand(c.words, help)
			}
			if wrong != nil {
				t.Errorf("%s:%d: %s: %v", file, c.line, strings.Join(c.words, " "), wrong)
			}
		}
	}
}

func documents(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/lab/*.md", "deploy/*.md"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range found {
			files = append(files, strings.TrimPrefix(filepath.ToSlash(f), repository+"/"))
		}
	}
	return files
}

type commandLine struct {
	line  int
	words []string // the program without its directory, and what stands behind it
}

var (
	word    = regexp.MustCompile(`(?:'[^']*'|\S)+`) // one argument of a shell, which may have spaces between quotes
	inText  = regexp.MustCompile("`([^`]+)`")
	started = regexp.MustCompile(`^(?:[$] |[.]/|bin/|sudo |-u \w+ |\w+=\S+ )*(grapevine|grapevine-lab|make) (.*)`)
)

// commandsOf finds the commands in a document's blocks, indented or fenced, and between backquotes.
func commandsOf(t *testing.T, file string) (all []commandLine) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	inside := ""
	for i, line := range strings.Split(string(text), "\n") {
		if info, fence := strings.CutPrefix(line, "```"); fence {
			if inside == "" {
				inside = "a block of " + info
			} else {
				inside = ""
			}
			continue
		}
		var candidates []string
		if strings.HasPrefix(inside, "a block of sh") || strings.HasPrefix(line, "    ") && inside == "" || strings.HasPrefix(line, "$ ") {
			line, _, _ = strings.Cut(line+" ", " # ") // a comment
			candidates = regexp.MustCompile(`[|&;]+`).Split(line, -1)
		} else if inside == "" {
			for _, m := range inText.FindAllStringSubmatch(line, -1) {
				candidates = append(candidates, strings.Split(m[1], "|")...)
			}
		}
		for _, c := range candidates {
			if m := started.FindStringSubmatch(strings.TrimSpace(c) + " "); m != nil {
				all = append(all, commandLine{i + 1, append(m[1:2:2], word.FindAllString(m[2], -1)...)})
			}
		}
	}
	return all
}

var name = regexp.MustCompile(`^[a-z][a-z-]*$`)

// checkCommand finds the command by the help of the longest beginning that has one.
func checkCommand(words []string, help func(tool string, words []string) string) error {
	tool, rest := words[0], words[1:]
	n := 0
	for n < len(rest) && n < 2 && name.MatchString(rest[n]) {
		n++
	}
	named := n
	for n > 0 && help(tool, rest[:n]) == "" {
		n--
	}
	text := help(tool, rest[:n])
	usage, _, _ := strings.Cut(text, "\n")
	if n < named && strings.Contains(usage, "<command>") {
		return fmt.Errorf("%s has no command %q", strings.Join(words[:n+1], " "), rest[n])
	}
	for _, w := range rest[n:] {
		flag, _, _ := strings.Cut(strings.TrimRight(w, ",)"), "=")
		if strings.HasPrefix(w, "--") && (n > 0 || flag != "--version") && !regexp.MustCompile(regexp.QuoteMeta(flag)+`([=,\s]|$)`).MatchString(text) {
			return fmt.Errorf("%s has no flag %s", strings.Join(words[:n+1], " "), flag)
		}
	}
	return nil
}

func checkMake(makefile string, words []string) error {
	for _, w := range words {
		variable, _, assigned := strings.Cut(w, "=")
		switch {
		case assigned && !strings.Contains(makefile, "$("+variable+")") && !strings.Contains(makefile, "$(or $("+variable) && !regexp.MustCompile(`\$\([a-z]+ [a-z]*,?\$\(`+variable).MatchString(makefile):
			return fmt.Errorf("the Makefile does not read %s", variable)
		case !assigned && name.MatchString(w) && !regexp.MustCompile(`(?m)^([a-z-]+ )*`+w+`( [a-z-]+)*:`).MatchString(makefile):
			return fmt.Errorf("the Makefile has no target %s", w)
		}
	}
	return nil
}

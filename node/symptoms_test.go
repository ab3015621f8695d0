package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSymptoms finds texts of docs/symptoms.md that no program or script says, and links to sections that docs/operate.md does not have.
func TestSymptoms(t *testing.T) {
	page, err := os.ReadFile("../docs/symptoms.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors := headings(t)
	for _, link := range regexp.MustCompile(`\(operate\.md#([^)]*)\)`).FindAllStringSubmatch(string(page), -1) {
		if !anchors[link[1]] {
			t.Errorf("docs/operate.md has no section %q", link[1])
		}
	}
	said := spoken(t)
	symptoms := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 {
			continue
		}
		symptoms++
		for _, text := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			if !strings.Contains(said, text[1]) {
				t.Errorf("nothing says %q", text[1])
			}
		}
	}
	if symptoms < 50 {
		t.Errorf("%d symptoms", symptoms)
	}
}

// spoken is the source of what speaks to an operator: the router, the scripts of its packages, and docs/operate.md for the names of
// metrics, events and settings, which other tests compare with the program.
func spoken(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	add(operateFile)
	for _, dir := range []string{".", "../proxy", "../raftstore", "../gossip", "../deploy/package"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !strings.HasSuffix(path, "_test.go") && (strings.HasSuffix(path, ".go") || strings.HasPrefix(path, "../deploy/package")) {
				add(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

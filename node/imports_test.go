package node

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "grapevine.example"

// mayImport lists what each package may import of this module (docs/design.md, section 3); /...
// stands for everything below. Unlisted packages are an error.
var mayImport = map[string][]string{
	"prefixtree":       {},
	"gossip/discovery": {},
	"gossip/member":    {"gossip/discovery"},
	"gossip/wire":      {},
	"gossip":           {"gossip/member", "gossip/wire"},
	"raftstore":        {},
	"proxy/engine":     {},
	"proxy/clients":    {},
	"proxy/prompt":     {"prefixtree"},
	"proxy/rules":      {},
	"proxy/demand":     {"prefixtree"},
	"proxy/books":      {"prefixtree"},
	"proxy/policy":     {"prefixtree", "proxy/demand", "proxy/books", "proxy/rules"},
	"proxy/queue":      {"proxy/clients", "proxy/policy"},

	"proxy": {"prefixtree", "proxy/..."},

	"proxy/engine/events": {},
	"proxy/engine/ledger": {"prefixtree", "proxy/engine/events"},

	"node/hot":       {"node/metrics", "prefixtree", "proxy", "proxy/demand", "proxy/policy", "proxy/prompt", "raftstore"},
	"node/notify":    {},
	"node/health":    {"node/backends", "node/config", "node/metrics", "prefixtree", "proxy/engine", "proxy/books", "proxy/policy", "raftstore"},
	"node/accesslog": {"proxy", "proxy/books"},
	"node/traces":    {"proxy", "proxy/books", "proxy/prompt"},
	"node/accounts":  {"node/metrics", "proxy", "proxy/clients", "proxy/books"},

	"node/handover":  {},
	"node/dashboard": {},
	"node/doctor":    {"prefixtree", "proxy", "proxy/policy", "proxy/prompt"},
	"node/history":   {"gossip/wire", "prefixtree", "proxy", "proxy/books", "proxy/policy"},
	"node/machine":   {},
	"node/admin":     {"gossip", "gossip/member", "node/config", "node/doctor", "node/history", "proxy/policy", "raftstore"},
	"node/config":    {"gossip/discovery", "gossip/member", "node/accesslog", "node/config/nearest", "node/machine", "node/traces", "prefixtree", "proxy", "proxy/clients", "proxy/engine/events", "proxy/policy", "proxy/rules", "raftstore"},
	"node/metrics":   {"proxy", "proxy/clients", "proxy/books", "proxy/policy", "proxy/prompt", "proxy/rules", "raftstore"},
	"node":           {"prefixtree", "gossip", "gossip/discovery", "gossip/member", "node/accesslog", "node/accounts", "node/admin", "node/backends", "node/config", "node/dashboard", "node/doctor", "node/handover", "node/health", "node/history", "node/hot", "node/machine", "node/metrics", "node/share", "node/sources", "node/streams", "node/traces", "raftstore", "proxy", "proxy/..."},

	"node/config/nearest": {},

	"node/backends": {"gossip/member", "node/config", "prefixtree", "proxy", "proxy/engine", "proxy/engine/events", "proxy/policy", "proxy/rules", "raftstore"},
	"node/streams":  {"node/backends", "node/config", "node/health", "prefixtree", "proxy", "proxy/engine", "proxy/engine/events", "proxy/engine/ledger", "proxy/policy"},
	"node/sources":  {"gossip/discovery", "node/config", "node/metrics", "raftstore"},
	"node/share":    {"gossip/wire", "prefixtree", "proxy/demand", "proxy/books", "proxy/policy"},

	"chaos/engine":   {},
	"chaos/workload": {},

	"chaos/dnstest":    {},
	"chaos/ablate":     {"chaos/overlay", "chaos/report"},
	"chaos/apart":      {"chaos/engine", "node", "node/config"},
	"chaos/bubble":     {},
	"chaos/figures":    {},
	"chaos/instrument": {"chaos/overlay", "chaos/plant"},
	"chaos/netswitch":  {},
	"chaos/overlay":    {},
	"chaos/plant":      {"chaos/overlay"},
	"chaos/programs":   {},
	"chaos/virtual":    {},

	"chaos/plot":     {},
	"chaos/report":   {"chaos/plot"},
	"chaos/history":  {},
	"chaos/scenario": {"chaos/...", "node", "node/admin", "prefixtree"},
	"chaos/replay":   {"chaos/report", "chaos/workload", "prefixtree", "proxy", "proxy/..."},
	"chaos/fleetsim": {"chaos/engine", "chaos/report", "chaos/workload", "gossip/wire", "prefixtree", "node/hot", "node/share", "node/streams", "proxy/clients", "proxy/engine", "proxy/engine/events", "proxy/books", "proxy/policy", "proxy/prompt", "proxy/queue"},

	"chaos/fleetsim/family": {"chaos/engine", "chaos/fleetsim", "chaos/plot", "chaos/report", "chaos/workload", "proxy/policy"},
	"chaos/fleetsim/herd":   {"chaos/fleetsim", "chaos/plot", "chaos/report", "chaos/workload"},

	"chaos/fleet": {"chaos/...", "node", "node/admin", "prefixtree", "proxy", "proxy/..."},
	"chaos/demo":  {"chaos/...", "node", "proxy", "proxy/..."},
	"chaos/bench": {"chaos/...", "node", "prefixtree", "proxy", "proxy/..."},
	"chaos/race":  {"chaos/..."},

	"chaos/browser": {"chaos/..."},

	"deploy/release": {},

	"cmd/commandline":        {"node/config/nearest"},
	"cmd/commandline/manual": {"cmd/commandline"},

	"cmd/grapevine":     {"cmd/commandline", "node", "node/admin", "node/config", "node/handover", "node/doctor", "node/machine", "node/notify", "raftstore"},
	"cmd/grapevine-lab": {"cmd/commandline", "chaos/...", "node/config", "proxy/clients"},
}

// outside lists the imports of pure packages from other modules.
var outside = map[string][]string{
	"prefixtree":   {"github.com/zeebo/xxh3"},
	"proxy/demand": nil,
	"proxy/books":  nil,
	"proxy/rules":  {"github.com/zeebo/xxh3"},
	"proxy/policy": {"github.com/zeebo/xxh3"},
	"proxy/queue":  {},
	"proxy/prompt": {"github.com/zeebo/xxh3", "golang.org/x/sys/cpu"},
	"proxy/engine": nil,

	"proxy/engine/events": nil,

	"proxy/clients":    {"github.com/zeebo/xxh3"},
	"gossip/discovery": nil,
	"gossip/wire":      nil,
	"node/machine":     nil,
	"node/notify":      nil,
	"node/share":       nil,

	"proxy/engine/ledger": nil,
}

var impure = map[string][]string{
	"prefixtree":   {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/demand": {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/books":  {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/rules":  {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/policy": {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/prompt": {"net", "net/http", "log", "log/slog", "os", "context"},
	"proxy/engine": {"log", "log/slog", "os"},

	"proxy/engine/events": {"log", "log/slog", "os"},

	"proxy/clients": {"net", "net/http", "log", "log/slog", "os", "context"},
	"node/share":    {"net", "net/http", "log", "log/slog", "os", "context"},

	"proxy/engine/ledger": {"net", "net/http", "log", "log/slog", "os", "context", "time"},
}

var topLevel = []string{
	"cmd", "node", "proxy", "prefixtree", "gossip", "raftstore", "chaos", "deploy", "docs",
	"go.mod", "go.sum", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md",
	"bin", "out", "node_modules",
}

// imports maps directories to imported paths. It reads the sources, because the test cache does not
// notice what a subprocess like go list reads.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	graph := make(map[string][]string)
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != ".." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "out" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		dir = strings.TrimPrefix(dir, "../")
		if _, ok := graph[dir]; !ok {
			graph[dir] = nil
		}
		for _, s := range f.Imports {
			p, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(graph[dir], p) {
				graph[dir] = append(graph[dir], p)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return graph
}

func TestImports(t *testing.T) {
	graph := imports(t)
	if len(graph["node"]) == 0 {
		t.Fatal("the walk did not even find this package")
	}
	for pkg, paths := range graph {
		allowed, ok := mayImport[pkg]
		if !ok {
			t.Errorf("%s is not in the table: say in mayImport what it may import", pkg)
			continue
		}
		external, restricted := outside[pkg]
		for _, p := range paths {
			inner, own := strings.CutPrefix(p, module+"/")
			switch {
			case own && !matches(allowed, inner):
				t.Errorf("%s imports %s; it may import %v", pkg, inner, allowed)
			case !own && restricted && strings.Contains(strings.Split(p, "/")[0], ".") && !slices.Contains(external, p):
				t.Errorf("%s imports %s; from outside the module it may import %v", pkg, p, external)
			case slices.Contains(impure[pkg], p):
				t.Errorf("%s imports %s; it is pure", pkg, p)
			}
		}
	}
}

func TestRouterNeverImportsChaos(t *testing.T) {
	graph := imports(t)
	if len(graph["cmd/grapevine"]) == 0 {
		t.Fatal("the walk did not find cmd/grapevine")
	}
	seen := map[string]bool{}
	var visit func(pkg string, via []string)
	visit = func(pkg string, via []string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		if pkg == "chaos" || strings.HasPrefix(pkg, "chaos/") {
			t.Errorf("the router reaches %s by %v", pkg, via)
		}
		for _, p := range graph[pkg] {
			if inner, ok := strings.CutPrefix(p, module+"/"); ok {
				visit(inner, append(via[:len(via):len(via)], inner))
			}
		}
	}
	visit("cmd/grapevine", []string{"cmd/grapevine"})
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s stands at the top level; the layout is %v", e.Name(), topLevel)
		}
	}
}

func TestNoGrabBags(t *testing.T) {
	bad := []string{"util", "utils", "common", "helpers", "helper", "types", "misc"}
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		concept := strings.TrimSuffix(strings.TrimSuffix(d.Name(), ".go"), "_test")
		if (d.IsDir() || path.Ext(d.Name()) == ".go") && slices.Contains(bad, concept) {
			t.Errorf("%s: name it after what it holds", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func matches(allowed []string, pkg string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool {
		if tree, ok := strings.CutSuffix(a, "/..."); ok {
			return strings.HasPrefix(pkg, tree+"/")
		}
		return a == pkg
	})
}

// The house of docs/design.md names every package, by its path or its last part.
func TestDesignNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, house, found := strings.Cut(string(text), "## 3. The house\n```\n")
	house, _, ended := strings.Cut(house, "```")
	if !found || !ended {
		t.Fatal("no house in docs/design.md")
	}
	words := strings.FieldsFunc(house, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz-/", r) })
	named := make(map[string]bool)
	for _, w := range words {
		named[path.Base(w)] = true
	}
	for p := range mayImport {
		if below := strings.HasPrefix(p, "chaos/fleetsim/"); !below && !named[path.Base(p)] {
			t.Errorf("docs/design.md, section 3, does not name %s", p)
		}
	}
}

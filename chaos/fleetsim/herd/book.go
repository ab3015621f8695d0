package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"grapevine.example/chaos/report"
)

type line struct {
	Code   string   `json:"code"`
	Scene  string   `json:"scene"`
	Speed  float64  `json:"speed"`
	Seed   uint64   `json:"seed"`
	Nodes  int      `json:"nodes"`
	Policy string   `json:"policy"`
	CPUS   float64  `json:"cpu_s"`
	Runs   []result `json:"runs"`
}

type result struct {
	place
	HitRate float64 `json:"hit_rate"`
	TTFTP99 float64 `json:"ttft_p99_ms"`
	Mean    float64 `json:"ttft_mean_ms"`
}

type key struct {
	scene  scene
	seed   uint64
	nodes  int
	policy string
}

func (j job) key() key { return key(j) }

// book is the append-only file of played jobs. Safe for concurrent use.
type book struct {
	code  string
	again []string // if set, only these policies need the present code

	mu    sync.Mutex
	file  *os.File
	lines map[key]line
}

// maxLine bounds a line of the book: twenty results of about 200 bytes, with a wide margin.
const maxLine = 1 << 20

func openBook(path, code string, again []string) (*book, error) {
	b := &book{code: code, again: again, lines: map[key]line{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	var err error
	if b.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644); err != nil { //nolint:gosec // figures for everybody
		return nil, err
	}
	if err := b.read(path); err != nil {
		return nil, errors.Join(err, b.file.Close())
	}
	return b, nil
}

// read loads the valid lines; a later line replaces an earlier one. It ends a line that a crash cut
// off, so that the next starts afresh.
func (b *book) read(path string) error {
	sc := bufio.NewScanner(b.file)
	sc.Buffer(nil, maxLine)
	broken := 0
	for n := 1; sc.Scan(); n++ {
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			broken++
			fmt.Fprintf(os.Stderr, "herd: %s:%d is no result and is left out: %v\n", path, n, err)
			continue
		}
		if b.holds(&l) {
			b.lines[key{scene{l.Scene, l.Speed}, l.Seed, l.Nodes, l.Policy}] = l
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if broken > 0 {
		_, err := b.file.WriteString("\n")
		return err
	}
	return nil
}

func (b *book) holds(l *line) bool {
	return l.Code == b.code || len(b.again) > 0 && !slices.Contains(b.again, l.Policy)
}

func (b *book) close() { _ = b.file.Close() } // every line was written, or its error reported

func (b *book) has(j job) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.lines[j.key()]
	return ok
}

func (b *book) add(j job, reports []report.Report, cpu time.Duration) error {
	l := line{Code: b.code, Scene: j.scene.name, Speed: j.scene.speed, Seed: j.seed, Nodes: j.nodes, Policy: j.policy, CPUS: cpu.Seconds()}
	for i := range reports {
		r := &reports[i]
		p := placeOf(j, r)
		if slices.ContainsFunc(l.Runs, func(x result) bool { return x.place == p }) {
			continue
		}
		l.Runs = append(l.Runs, result{place: p, HitRate: r.HitRate, TTFTP99: r.TTFT.P99, Mean: r.TTFT.Mean})
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines[j.key()] = l
	_, err = b.file.Write(append(text, '\n'))
	return err
}

var deciding = []string{"prefixtree", "proxy/policy", "proxy/books", "node/share", "node/hot", "chaos/engine", "chaos/workload", "chaos/fleetsim"}

// codeDigest names the code below root that decides a run, so that results of other versions do not
// count.
func codeDigest(root string) (string, error) {
	h := sha256.New()
	for _, dir := range deciding {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
		if err != nil {
			return "", err
		}
		if len(files) == 0 {
			return "", fmt.Errorf("no source in %s: run this in the root of the repository: %w", dir, fs.ErrNotExist)
		}
		slices.Sort(files)
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %d\n", filepath.ToSlash(f), len(text))
			h.Write(text)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

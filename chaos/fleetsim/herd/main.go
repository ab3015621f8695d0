// Command herd plays a grid in virtual time and judges the default policy against all others at every
// point. Grid `herd` is the herd curve: nodes, the staleness of their knowledge, and what they share.
// Grid `traces` is every trace at three loads, in fleets that share both.
//
//	go run ./chaos/fleetsim/herd -traces ../shared/traces -grid herd
//
// Each finished run is kept as a line of JSON with a digest of the deciding code and not played
// again, so the command can be stopped and continued at any time.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/report"
)

type options struct {
	*grid
	traces   string
	cache    string
	docs     string
	seeds    []uint64
	policies []string
	part     []string // flags that leave out a part of the grid
	again    []string
	parallel int
	render   bool
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "herd:", err)
		}
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := herd(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "herd:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("herd", flag.ContinueOnError)
	f.StringVar(&o.traces, "traces", filepath.Join("..", "shared", "traces"), "directory with the traces")
	name := f.String("grid", grids[0].name, "what to play: herd or traces")
	f.StringVar(&o.cache, "cache", "", "file of the runs already played (default out/GRID.jsonl)")
	f.StringVar(&o.docs, "docs", "docs", "directory for GRID.md, GRID.csv and, for herd, herd.svg")
	seeds := f.String("seeds", "1,2,3,4,5", "seeds to average over")
	nodes := f.String("nodes", "all", "numbers of nodes; all: those of the grid")
	scenes := f.String("scenes", "all", "traces, by parts of their names; the table has these alone; all: those of the grid")
	policies := f.String("policies", strings.Join(fleetsim.Policies(), ","), "policies; the first is judged against the others")
	again := f.String("again", "", "play only these policies with the present code, and take what is kept of the others whatever code it is from")
	f.IntVar(&o.parallel, "parallel", runtime.GOMAXPROCS(0), "runs at once")
	f.BoolVar(&o.render, "render", false, "play nothing; write table and picture of what is kept")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: there are flags only", f.Arg(0))
	}
	g, err := gridOf(*name)
	if err != nil {
		return o, err
	}
	played := *g
	o.grid, o.cache = &played, cmp.Or(o.cache, filepath.Join("out", g.name+".jsonl"))
	for _, s := range list(*seeds) {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return o, fmt.Errorf("seed %q: %w", s, err)
		}
		o.seeds = append(o.seeds, n)
	}
	if *nodes == "all" {
		*nodes = ""
	} else {
		o.nodes, o.part = nil, append(o.part, "-nodes "+*nodes)
	}
	for _, s := range list(*nodes) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return o, fmt.Errorf("nodes %q: %w", s, err)
		}
		o.nodes = append(o.nodes, n)
	}
	if *scenes != "all" {
		o.part = append(o.part, "-scenes "+*scenes)
		o.scenes = slices.DeleteFunc(slices.Clone(o.scenes), func(sc scene) bool {
			return !slices.ContainsFunc(list(*scenes), func(part string) bool { return strings.Contains(sc.name, part) })
		})
		if len(o.scenes) == 0 {
			return o, fmt.Errorf("scenes %q: grid %s has no such trace", *scenes, g.name)
		}
	}
	o.policies, o.again = list(*policies), list(*again)
	if len(o.seeds) == 0 || len(o.nodes) == 0 || len(o.policies) < 2 {
		return o, errors.New("a seed, a number of nodes and two policies are the least there is to compare")
	}
	return o, nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func herd(ctx context.Context, o options) error {
	code, err := codeDigest(".")
	if err != nil {
		return err
	}
	book, err := openBook(o.cache, code, o.again)
	if err != nil {
		return err
	}
	defer book.close()
	if !o.render {
		began, before := time.Now(), cpuTime()
		played, err := play(ctx, o, book)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "herd: %d jobs in %v, %v of processor time\n", played,
			time.Since(began).Round(time.Second), (cpuTime() - before).Round(time.Second))
	}
	s := summarise(o, book)
	if len(s.points) == 0 {
		return fmt.Errorf("no point of the grid has been played for all policies and seeds: run without -render, or see %s", o.cache)
	}
	if err := os.MkdirAll(o.docs, 0o755); err != nil {
		return err
	}
	write := func(kind, text string) error {
		return report.WriteFile(filepath.Join(o.docs, o.name+kind), []byte(text))
	}
	err = errors.Join(write(".md", s.markdown()), write(".csv", s.csv()))
	if o.picture {
		err = errors.Join(err, write(".svg", s.svg()))
	}
	return err
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

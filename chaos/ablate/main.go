// Command ablate removes the mechanisms of the default policy one at a time, or leaves out and adds the
// scorers of strategy weighted, or doubles and halves the constants of either, and prints the effect on
// first-token times and cache hits over the drawn fleets of docs/family.md.
//
//	go run ./chaos/ablate [-draws 50] [-seed 1] [-strategy prefix|weighted] [-constants] [-only NAME,...]
//
// A variant is a build of grapevine-lab with edited sources (go build -overlay); the policy has no
// switches for it. Results are kept under the build ids of its packages and not played again, so the
// command can be stopped and continued at any time.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

var (
	draws    = flag.Int("draws", 50, "draws of the family, at least 2")
	seed     = flag.Uint64("seed", 1, "seed of the family")
	strategy = flag.String("strategy", "prefix", "strategy to play: prefix, whose mechanisms are removed, or weighted, whose scorers are left out and added")
	tuning   = flag.Bool("constants", false, "double and halve constants instead of removing mechanisms")
	only     = flag.String("only", "", "play only these mechanisms, scorers or constants, separated by commas")
	cache    = flag.String("cache", filepath.Join("out", "ablate.jsonl"), "file of the variants already played")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := ablate(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ablate:", err)
		os.Exit(1)
	}
}

func ablate(ctx context.Context) error {
	if flag.NArg() > 0 || *draws < 2 {
		return fmt.Errorf("%d draws, %q: want at least two draws, and flags only", *draws, flag.Args())
	}
	constants, lines, err := constantsOf(".", decision...)
	ofHot, hotLines, errHot := constantsOf(".", "node/hot")
	if err := errors.Join(err, errHot); err != nil {
		return err
	}
	variants := map[string][]variant{"prefix": mechanisms, "weighted": scorers}[*strategy]
	if variants == nil {
		return fmt.Errorf("-strategy %s: use prefix or weighted", *strategy)
	}
	if *tuning {
		variants = slices.DeleteFunc(slices.Clone(constants), func(v variant) bool { return fixed[v.first()] != "" })
	}
	if variants, err = choose(variants, *only); err != nil {
		return err
	}
	results, err := playAll(ctx, append([]variant{{name: "the code as it is"}}, variants...))
	if err != nil {
		return err
	}
	fmt.Printf("Strategy %s, %d draws of seed %d; %d mechanisms of prefix; ", *strategy, *draws, *seed, len(mechanisms))
	fmt.Printf("%s: %d constants, of which %d are not tried, %d lines; ", strings.Join(decision, ", "), len(constants)/2, len(fixed), lines)
	fmt.Printf("node/hot: %d constants, %d lines\n\n", len(ofHot)/2, hotLines)
	return write(os.Stdout, results[0], variants, results[1:])
}

// choose returns the variants of the names, both of a constant; all if there are no names.
func choose(variants []variant, names string) (out []variant, err error) {
	if names == "" {
		return variants, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		before := len(out)
		for _, v := range variants {
			if v.first() == name {
				out = append(out, v)
			}
		}
		if len(out) == before {
			return nil, fmt.Errorf("-only %s: not of this strategy in chaos/ablate/mechanisms.go; constants need -constants", name)
		}
	}
	return out, nil
}

// playAll plays the variants that are not kept, one after the other.
func playAll(ctx context.Context, variants []variant) (results [][]outcome, err error) {
	if err := os.MkdirAll(filepath.Dir(*cache), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(*cache, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644) //nolint:gosec // figures for everybody
	if err != nil {
		return nil, err
	}
	defer file.Close() // every line was written, or its error reported
	type line struct {
		Key, Name string
		Outcomes  []outcome
	}
	kept, first := map[string][]outcome{}, ""
	for lines := json.NewDecoder(file); lines.More(); {
		var l line
		if err := lines.Decode(&l); err != nil {
			return nil, fmt.Errorf("%s: %w: remove the broken line", *cache, err)
		}
		kept[l.Key] = l.Outcomes
	}
	dir, err := os.MkdirTemp("", "ablate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for i, v := range append(variants, variants[0]) { // the original again, to notice that sources changed meanwhile
		list, ids, err := prepare(ctx, ".", dir, program, v.edits)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		key := fmt.Sprintf("%s, %d draws of seed %d by %s", *strategy, *draws, *seed, ids)
		if first = cmp.Or(first, key); i == len(variants) && key != first {
			return nil, errors.New("the sources changed meanwhile: start again")
		}
		if kept[key] == nil {
			began := time.Now()
			if kept[key], err = play(ctx, list, filepath.Join(dir, "lab")); err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			if err := json.NewEncoder(file).Encode(line{key, v.name, kept[key]}); err != nil {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "%d of %d: %s, %v\n", i+1, len(variants), v.name, time.Since(began).Round(time.Second))
		}
		results = append(results, kept[key])
	}
	return results[:len(variants)], nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
)

const backends = 16

// job is what is played at once: all shares and delays of one setting, because they share arrivals
// and many runs.
type job struct {
	scene  scene
	seed   uint64
	nodes  int
	policy string
}

// play plays what the book lacks, by seed and then by number of nodes, so that a part of the table
// is complete early.
func play(ctx context.Context, o options, book *book) (played int, err error) {
	var jobs []job
	for _, seed := range o.seeds {
		for _, nodes := range o.nodes {
			for _, sc := range o.scenes {
				for _, p := range o.policies {
					if j := (job{sc, seed, nodes, p}); !book.has(j) {
						jobs = append(jobs, j)
					}
				}
			}
		}
	}
	traces, err := openTraces(o.traces, o.scenes)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	queue := make(chan job)
	errs := make(chan error, max(1, o.parallel))
	for range max(1, o.parallel) {
		wg.Go(func() {
			for j := range queue {
				if err := j.play(ctx, o.grid, traces[j.scene.name], book); err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	for i, j := range jobs {
		select {
		case queue <- j:
			fmt.Fprintf(os.Stderr, "herd: %d of %d: %s at %g, %d nodes, seed %d, %s\n", i+1, len(jobs), j.scene.name, j.scene.speed, j.nodes, j.seed, j.policy)
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return 0, err
	}
	return len(jobs), ctx.Err()
}

func openTraces(dir string, scenes []scene) (map[string]workload.Workload, error) {
	out := map[string]workload.Workload{}
	for _, sc := range scenes {
		if out[sc.name] != nil {
			continue
		}
		files, err := filepath.Glob(filepath.Join(dir, sc.name+"*.jsonl*"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no trace %s in %s: -traces names the directory", sc.name, dir)
		}
		// The whole trace has the shortest name; the rest are parts of it.
		file := slices.MinFunc(files, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		if out[sc.name], err = workload.Open(file); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (j job) play(ctx context.Context, g *grid, w workload.Workload, book *book) error {
	began := cpuTime()
	reports, err := fleetsim.Run(ctx, fleetsim.Config{
		Workload: w, Options: workload.Options{Speed: j.scene.speed, Seed: j.seed}, Policies: []string{j.policy},
		Nodes: []int{j.nodes}, Share: g.shares, Staleness: g.delays, Backends: backends, Parallel: 1,
	})
	if err != nil {
		return fmt.Errorf("%s, %d nodes, seed %d, %s: %w", j.scene.name, j.nodes, j.seed, j.policy, err)
	}
	return book.add(j, reports, cpuTime()-began)
}

func placeOf(j job, r *report.Report) place {
	p := place{Scene: j.scene.name, Nodes: j.nodes, Share: r.Share, DelayS: -1}
	if r.StalenessMS != nil {
		p.DelayS = *r.StalenessMS / 1000
	}
	return p.plain()
}

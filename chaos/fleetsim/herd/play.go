package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"grapevine/chaos/fleetsim"
	"grapevine/chaos/report"
	"grapevine/chaos/workload"
)

type scene struct {
	name  string
	speed float64
}

var scenes = []scene{{"mooncake_conversation", 4}, {"mooncake_hotmix_synthetic", 3.5}}

const backends = 16

var (
	shares = []fleetsim.Share{fleetsim.ShareBoth, fleetsim.SharePrefix, fleetsim.ShareLoad, fleetsim.ShareNone}
	delays = []time.Duration{0, 200 * time.Millisecond, time.Second, 5 * time.Second, fleetsim.Never}
)

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
			for _, sc := range scenes {
				for _, p := range o.policies {
					if j := (job{sc, seed, nodes, p}); !book.has(j) {
						jobs = append(jobs, j)
					}
				}
			}
		}
	}
	traces, err := openTraces(o.traces)
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
				if err := j.play(ctx, traces[j.scene], book); err != nil {
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
			fmt.Fprintf(os.Stderr, "herd: %d of %d: %s, %d nodes, seed %d, %s\n", i+1, len(jobs), j.scene.name, j.nodes, j.seed, j.policy)
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

func openTraces(dir string) (map[scene]workload.Workload, error) {
	out := map[scene]workload.Workload{}
	for _, sc := range scenes {
		files, err := filepath.Glob(filepath.Join(dir, sc.name+"*.jsonl*"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no trace %s in %s: -traces names the directory", sc.name, dir)
		}
		// The whole trace has the shortest name; the rest are parts of it.
		file := slices.MinFunc(files, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		if out[sc], err = workload.Open(file); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (j job) play(ctx context.Context, w workload.Workload, book *book) error {
	began := cpuTime()
	reports, err := fleetsim.Run(ctx, fleetsim.Config{
		Workload: w, Options: workload.Options{Speed: j.scene.speed, Seed: j.seed}, Policies: []string{j.policy},
		Nodes: []int{j.nodes}, Share: shares, Staleness: delays, Backends: backends, Parallel: 1,
	})
	if err != nil {
		return fmt.Errorf("%s, %d nodes, seed %d, %s: %w", j.scene.name, j.nodes, j.seed, j.policy, err)
	}
	return book.add(j, reports, cpuTime()-began)
}

type place struct {
	Scene  string  `json:"scene"`
	Nodes  int     `json:"nodes"`
	Share  string  `json:"share"`
	DelayS float64 `json:"delay_s"`
}

func placeOf(j job, r *report.Report) place {
	p := place{Scene: j.scene.name, Nodes: j.nodes, Share: r.Share, DelayS: -1}
	if r.StalenessMS != nil {
		p.DelayS = *r.StalenessMS / 1000
	}
	return p.plain()
}

// plain maps equivalent places to one name: a fleet of one node, and nodes that share nothing at
// any delay.
func (p place) plain() place {
	if p.Nodes == 1 || p.DelayS < 0 || p.Share == string(fleetsim.ShareNone) {
		p.Share, p.DelayS = string(fleetsim.ShareNone), -1
	}
	return p
}

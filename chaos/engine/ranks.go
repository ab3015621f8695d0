package engine

import (
	"errors"
	"strconv"
	"time"
)

const maxRanks = 1024

// ranks are the data-parallel ranks of an engine: they share one front end, and neither memory nor batch.
type ranks []*driver

// choose follows the header as vLLM does; without it the rank with the fewest requests, equal ones in turn.
func (all ranks) choose(header string, turn int64) (*driver, error) {
	if header != "" {
		rank, err := strconv.Atoi(header)
		if err != nil || rank < 0 || rank >= len(all) {
			return nil, badRequest("data_parallel_rank", "data_parallel_rank %s is out of range [0, %d).", header, len(all))
		}
		return all[rank], nil
	}
	best := all[turn%int64(len(all))]
	for _, d := range all {
		if d.active.Load() < best.active.Load() {
			best = d
		}
	}
	return best, nil
}

func (all ranks) each(op func(m *Model, now time.Duration)) (err error) {
	for _, d := range all {
		err = errors.Join(err, d.do(func(now time.Duration) { op(d.model, now) }))
	}
	return err
}

func (all ranks) slow(factor float64) error {
	return all.each(func(m *Model, now time.Duration) { m.Slow(factor, now) })
}

func (d *driver) stats() (s Stats, err error) {
	err = d.do(func(time.Duration) { s = d.model.Stats() })
	return s, err
}

func (s *Stats) add(o *Stats) {
	s.Running += o.Running
	s.Waiting += o.Waiting
	s.Decoding += o.Decoding
	s.KVTokens += o.KVTokens
	s.KVUsed += o.KVUsed
	s.KVShared += o.KVShared
	s.KVEvictable += o.KVEvictable
	s.Submitted += o.Submitted
	s.Finished += o.Finished
	s.Cancelled += o.Cancelled
	s.Refused += o.Refused
	s.Preempted += o.Preempted
	s.PromptTokens += o.PromptTokens
	s.CachedTokens += o.CachedTokens
	s.PrefillTokens += o.PrefillTokens
	s.OutputTokens += o.OutputTokens
	s.EvictedTokens += o.EvictedTokens
	s.LoadedTokens += o.LoadedTokens
	s.AdapterLoads += o.AdapterLoads
	s.Steps += o.Steps
	s.Busy += o.Busy
	s.PrefillBusy += o.PrefillBusy
	s.FirstTokens += o.FirstTokens
	s.FirstComputed += o.FirstComputed
	s.ComputedTokens += o.ComputedTokens
	s.PrefillTime += o.PrefillTime
}

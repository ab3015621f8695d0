package engine

import (
	"slices"

	"github.com/zeebo/xxh3"
)

func adapterKey(name string) uint64 {
	if name == "" {
		return 0
	}
	return max(xxh3.HashString(name), 1)
}

// Adapters lists the adapters of running jobs, and the others of waiting ones.
func (m *Model) Adapters() (running, waiting []uint64) {
	for _, j := range m.running {
		if j.Adapter != 0 && !slices.Contains(running, j.Adapter) {
			running = append(running, j.Adapter)
		}
	}
	for _, j := range m.waiting {
		if j.Adapter != 0 && !slices.Contains(running, j.Adapter) && !slices.Contains(waiting, j.Adapter) {
			waiting = append(waiting, j.Adapter)
		}
	}
	return running, waiting
}

// victim returns the slot for another adapter: a free one, or that of the least recently admitted adapter that no running job uses;
// -1 if all are in use.
func (m *Model) victim() int {
	if len(m.adapters) < m.cfg.AdapterSlots {
		return len(m.adapters)
	}
	return slices.IndexFunc(m.adapters, func(name uint64) bool {
		return !slices.ContainsFunc(m.running, func(j *Job) bool { return j.Adapter == name })
	})
}

// load gives the adapter of a job that was just admitted its slot.
func (m *Model) load(adapter uint64) {
	if m.cfg.AdapterSlots == 0 || adapter == 0 {
		return
	}
	at := slices.Index(m.adapters, adapter)
	if at < 0 {
		m.loading += m.cfg.AdapterLoad
		m.stats.AdapterLoads++
		at = m.victim()
	}
	if at < len(m.adapters) {
		m.adapters = slices.Delete(m.adapters, at, at+1)
	}
	m.adapters = append(m.adapters, adapter)
}

package accounts

import "grapevine.example/node/metrics"

const bounds = 8

// Histogram counts values by their size. Copies are independent.
type Histogram struct {
	Bounds *[bounds]float64   // upper ends, rising
	Counts [bounds + 1]uint64 // values up to each bound, and above the last; not cumulative
	Sum    float64
}

func (h *Histogram) add(v float64) {
	i := 0
	for i < bounds && v > h.Bounds[i] {
		i++
	}
	h.Counts[i]++
	h.Sum += v
}

// Count returns the number of values.
func (h *Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile estimates the value that a share q of all lie below, evenly spread inside a bucket, as Prometheus does; 0 without values.
// Beyond the last bound it returns that.
func (h *Histogram) Quantile(q float64) float64 {
	total := h.Count()
	rank, low := q*float64(total), 0.
	for i, n := range h.Counts[:bounds] {
		if n > 0 && rank <= float64(n) {
			return low + (h.Bounds[i]-low)*rank/float64(n)
		}
		rank, low = rank-float64(n), h.Bounds[i]
	}
	if total == 0 {
		return 0
	}
	return low
}

// Prometheus returns the values in the form of metrics.Scrape.
func (h *Histogram) Prometheus() metrics.Histogram {
	p := metrics.Histogram{Sum: h.Sum, Buckets: make(map[float64]uint64, bounds)}
	for i, n := range h.Counts {
		p.Count += n
		if i < bounds {
			p.Buckets[h.Bounds[i]] = p.Count
		}
	}
	return p
}

package metrics

import (
	"encoding/hex"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// exemplarWindow is about as long as collectors wait between scrapes, which take the last exemplar of each bucket.
const exemplarWindow = 15 * time.Second

// timed is a histogram that names the traces of slow requests. An exemplar costs 0.5 us and ten allocations, and a request is in six
// histograms: so only some of the requests whose trace is recorded become one, in each window the first and each that is slower.
type timed struct {
	prometheus.Histogram
	window  atomic.Int64  // the present one, in windows since 1970
	slowest atomic.Uint64 // its slowest exemplar: the bits of a float64, ordered as the seconds are
}

// observe adds a time of a request, in seconds and not negative.
func (h *timed) observe(at *times, seconds float64) {
	r := at.record
	if !r.Trace.Sampled || !h.slower(r.Start.Add(r.Total), seconds) {
		h.Observe(seconds)
		return
	}
	h.Histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, prometheus.Labels{"trace_id": hex.EncodeToString(r.Trace.ID[:])})
}

// slower reports whether a time is to become an exemplar. Of requests that end at the same time, too many may.
func (h *timed) slower(now time.Time, seconds float64) bool {
	bits, window := math.Float64bits(seconds), now.UnixNano()/int64(exemplarWindow)
	if h.window.Load() == window && bits <= h.slowest.Load() {
		return false
	}
	h.window.Store(window)
	h.slowest.Store(bits)
	return true
}

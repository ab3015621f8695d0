package replay

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine/chaos/report"
)

// overheadMetric is the routers' histogram of their own time per request, in seconds, which is too
// short for clients to measure.
const overheadMetric = "grapevine_overhead_seconds"

// maxMetrics bounds a metrics page, in bytes.
const maxMetrics = 16 << 20

type histogram struct {
	buckets map[float64]float64
	sum     float64
}

func overheadOf(ctx context.Context, admins []string) (histogram, error) {
	h := histogram{buckets: make(map[float64]float64)}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, admin := range admins {
		url := strings.TrimSuffix(admin, "/") + "/metrics"
		if !strings.Contains(admin, "://") {
			url = "http://" + url
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return h, fmt.Errorf("%w: admin address %q: %w", ErrConfig, admin, err)
		}
		if err := h.scrape(client, req); err != nil {
			return h, fmt.Errorf("metrics of %s: %w", admin, err)
		}
	}
	return h, nil
}

func (h *histogram) scrape(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return h.read(io.LimitReader(resp.Body, maxMetrics))
}

func (h *histogram) read(r io.Reader) error {
	found := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), overheadMetric)
		if !ok {
			continue
		}
		head, value, ok := strings.Cut(rest, " ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(head, "_sum"):
			h.sum += v
		case strings.HasPrefix(head, "_bucket"):
			_, le, _ := strings.Cut(head, `le="`)
			le, _, _ = strings.Cut(le, `"`)
			bound, err := strconv.ParseFloat(le, 64)
			if err != nil {
				return fmt.Errorf("bucket %q", head)
			}
			h.buckets[bound] += v
			found = true
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("no %s: not a router's admin address", overheadMetric)
	}
	return nil
}

// since summarises the observations between two readings, in microseconds. Quantiles are
// interpolated within a bucket; observations beyond the last bound count as the last bound.
func (h histogram) since(before histogram) report.Quantiles {
	type step struct{ bound, count float64 }
	steps := make([]step, 0, len(h.buckets))
	for bound, n := range h.buckets {
		steps = append(steps, step{bound, n - before.buckets[bound]})
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.bound, b.bound) })
	if len(steps) == 0 || steps[len(steps)-1].count <= 0 {
		return report.Quantiles{}
	}
	total := steps[len(steps)-1].count
	quantile := func(q float64) float64 {
		from, below := 0.0, 0.0
		for _, s := range steps {
			if s.count >= q*total {
				if math.IsInf(s.bound, 1) {
					return from
				}
				return from + (s.bound-from)*(q*total-below)/(s.count-below)
			}
			from, below = s.bound, s.count
		}
		return from
	}
	us := func(s float64) float64 { return math.Round(s*1e9) / 1e3 }
	return report.Quantiles{Mean: us((h.sum - before.sum) / total), P50: us(quantile(0.5)), P90: us(quantile(0.9)), P99: us(quantile(0.99))}
}

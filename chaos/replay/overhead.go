package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/chaos/report"
)

// overheadMetric is the routers' histogram of their own time per request, in seconds, which is too
// short for clients to measure.
const overheadMetric = "grapevine_overhead_seconds"

// maxPage bounds an answer of fetch, in bytes.
const maxPage = 16 << 20

// fetch returns a page. The default transport would keep the connection and its goroutines beyond
// this call.
func fetch(ctx context.Context, url, apiKey string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxPage))
}

// FirstModel returns the first of a target's models. It waits a few seconds at most.
func FirstModel(ctx context.Context, target, apiKey string) (string, error) {
	page, err := fetch(ctx, baseURL(target)+"/v1/models", apiKey)
	if err != nil {
		return "", fmt.Errorf("list of models: %w", err)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(page, &list); err != nil || len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", fmt.Errorf("list of models: no model in %.100q", page)
	}
	return list.Data[0].ID, nil
}

type histogram struct {
	buckets map[float64]float64
	sum     float64
}

func overheadOf(ctx context.Context, admins []string) (histogram, error) {
	h := histogram{buckets: make(map[float64]float64)}
	for _, admin := range admins {
		url := strings.TrimSuffix(admin, "/") + "/metrics"
		if !strings.Contains(admin, "://") {
			url = "http://" + url
		}
		page, err := fetch(ctx, url, "")
		if err != nil {
			return h, fmt.Errorf("router's metrics: %w", err)
		}
		if !bytes.Contains(page, []byte("\n"+overheadMetric+"_bucket")) {
			return h, fmt.Errorf("no %s at %s: not a router's admin address", overheadMetric, url)
		}
		h.read(string(page))
	}
	return h, nil
}

func (h *histogram) read(page string) {
	for line := range strings.Lines(page) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.ParseFloat(text, 64)
		name, ours := strings.CutPrefix(name, overheadMetric)
		switch {
		case err != nil || !ours:
		case strings.HasPrefix(name, "_sum"):
			h.sum += value
		case strings.HasPrefix(name, "_bucket"):
			_, le, _ := strings.Cut(name, `le="`)
			le, _, _ = strings.Cut(le, `"`)
			if bound, err := strconv.ParseFloat(le, 64); err == nil {
				h.buckets[bound] += value
			}
		}
	}
}

// since summarises the observations between two readings, in microseconds. Quantiles are
// interpolated within a bucket; observations beyond the last bound count as the last bound.
func (h histogram) since(before histogram) report.Quantiles {
	bounds := slices.Sorted(maps.Keys(h.buckets))
	count := func(bound float64) float64 { return h.buckets[bound] - before.buckets[bound] }
	total := count(math.Inf(1))
	if total <= 0 {
		return report.Quantiles{}
	}
	us := func(s float64) float64 { return math.Round(s*1e9) / 1e3 }
	quantile := func(q float64) float64 {
		from, below := 0.0, 0.0
		for _, to := range bounds[:len(bounds)-1] { // without infinity
			if n := count(to); n >= q*total {
				return us(from + (to-from)*(q*total-below)/(n-below))
			}
			from, below = to, count(to)
		}
		return us(from)
	}
	return report.Quantiles{Mean: us((h.sum - before.sum) / total), P50: quantile(0.5), P90: quantile(0.9), P99: quantile(0.99)}
}

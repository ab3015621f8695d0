package node

import (
	"fmt"

	"grapevine.example/node/admin"
	"grapevine.example/node/metrics"
	"grapevine.example/proxy/demand"
)

const (
	maxAffinities = 16 // models in Status
	// byLoad is the least share of the prompts' prefill that choosing caches must save, or the
	// verdict is "routed by load". Only that text depends on it.
	byLoad = 0.01
)

func (n *Node) affinity() []admin.Affinity {
	list := n.router.Affinities(now())
	list = list[:min(len(list), maxAffinities)]
	out := make([]admin.Affinity, len(list))
	for i, a := range list {
		out[i] = admin.Affinity{
			Model: a.Model, RequestsPerS: a.Rate, PromptsS: a.Whole, PrefillS: a.Prefill, SavedS: a.Saved, WaitedS: a.Waited,
			Price: a.Price, Verdict: verdict(a),
		}
	}
	return out
}

func verdict(a demand.Affinity) string {
	caches := fmt.Sprintf("caches save %.0f %% of prefill; choosing them", 100*max(1-a.Prefill/a.Whole, 0))
	if a.Saved < byLoad*a.Whole {
		return fmt.Sprintf("routed by load: %s adds less than %.0f %%", caches, 100*byLoad)
	}
	return fmt.Sprintf("%s saves %s of prefill for %s of longer waits, per second", caches, span(a.Saved), span(a.Waited))
}

// span formats seconds for a sentence: 0.4 ms, 27 ms, 3.1 s.
func span(seconds float64) string {
	switch ms := 1000 * seconds; {
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 99.5:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// collectAffinity adds up what has the same label.
func (n *Node) collectAffinity(s metrics.Scrape, list []demand.Affinity) {
	sums := make(map[string]demand.Affinity)
	for _, a := range list {
		label := n.metrics.ModelLabel(a.Model)
		sum := sums[label]
		sum.Add(a)
		sums[label] = sum
	}
	load := s.Gauge("affinity_load", "Seconds per second over the last minute, of requests that strategy prefix routed: prefill of the whole prompts (prompts), what caches do not save of it (prefill), what choosing a cache saves (saved), and longer waits for that cache (waited).", "model", "kind")
	for label, sum := range sums {
		load(sum.Whole, label, "prompts")
		load(sum.Prefill, label, "prefill")
		load(sum.Saved, label, "saved")
		load(sum.Waited, label, "waited")
	}
}

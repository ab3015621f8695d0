package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

type column struct {
	head string
	cell func(*Report) string
	// shown limits the column to tables in which some run has it.
	shown func(*Report) bool
}

func always(*Report) bool { return true }

var columns = []column{
	{"policy", func(r *Report) string { return r.Policy }, always},
	{"queue", func(r *Report) string { return r.Queueing }, func(r *Report) bool { return r.Queueing != "" }},
	{"nodes", func(r *Report) string { return fmt.Sprint(r.Nodes) }, func(r *Report) bool { return r.Nodes > 1 }},
	{"share", (*Report).share, shared},
	{"staleness", (*Report).staleness, shared},
	{"requests", func(r *Report) string { return fmt.Sprint(r.Requests) }, always},
	{"errors", func(r *Report) string { return fmt.Sprint(r.Errors) }, func(r *Report) bool { return r.Errors > 0 }},
	{"refused", func(r *Report) string { return fmt.Sprint(r.Refused) }, func(r *Report) bool { return r.Refused > 0 }},
	{"cut", func(r *Report) string { return fmt.Sprint(r.Cut) }, func(r *Report) bool { return r.Cut > 0 }},
	{"hit %", func(r *Report) string { return percent(r.HitRate) }, always},
	{"follow-up hit %", func(r *Report) string { return percent(r.FollowupCached) }, hasFollowups},
	{"same engine %", func(r *Report) string { return percent(r.FollowupSameBackend) }, hasFollowups},
	{"first token mean", func(r *Report) string { return span(r.TTFT.Mean) }, always},
	{"p50", func(r *Report) string { return span(r.TTFT.P50) }, always},
	{"p99", func(r *Report) string { return span(r.TTFT.P99) }, always},
	{"queued p99", func(r *Report) string { return span(r.Queue.P99) }, func(r *Report) bool { return r.Queue.P99 > 0 }},
	{"total p50", func(r *Report) string { return span(r.E2E.P50) }, always},
	{"p99", func(r *Report) string { return span(r.E2E.P99) }, always},
	{"load spread", func(r *Report) string { return fmt.Sprintf("%.2f", r.LoadCov) }, always},
	{"busy %", func(r *Report) string { return percent(r.Utilization) }, func(r *Report) bool { return r.Utilization > 0 }},
	{"gossip per node", func(r *Report) string { return rate(r.Gossip.BytesPerSPerNode) }, func(r *Report) bool { return r.Gossip.BytesPerSPerNode > 0 }},
	{"router p99", func(r *Report) string { return fmt.Sprintf("%.0f us", r.RouterOverhead.P99) },
		func(r *Report) bool { return r.RouterOverhead.P99 > 0 }},
	{"predict. error %", func(r *Report) string {
		if r.Prediction.Requests == 0 {
			return "-"
		}
		return percent(r.Prediction.Share)
	}, func(r *Report) bool { return r.Prediction.Requests > 0 }},
}

func shared(r *Report) bool { return r.Nodes > 1 && r.Sharing != nil }

func (r *Report) share() string {
	if !shared(r) {
		return "-"
	}
	return r.Share
}

func (r *Report) staleness() string {
	switch {
	case !shared(r):
		return "-"
	case r.StalenessMS == nil:
		return "none"
	}
	return (time.Duration(*r.StalenessMS * float64(time.Millisecond))).String()
}

func hasFollowups(r *Report) bool { return r.FollowupRequests > 0 }

// cells returns a row of headings and one per run, without empty columns.
func cells(runs []Report) [][]string {
	rows := make([][]string, len(runs)+1)
	for _, c := range columns {
		if !slices.ContainsFunc(runs, func(r Report) bool { return c.shown(&r) }) {
			continue
		}
		rows[0] = append(rows[0], c.head)
		for i := range runs {
			rows[i+1] = append(rows[i+1], c.cell(&runs[i]))
		}
	}
	return rows
}

// WriteTable writes the runs as aligned text.
func WriteTable(w io.Writer, runs ...Report) error { return WriteRows(w, cells(runs)) }

// WriteClients writes each run's clients as aligned text.
func WriteClients(w io.Writer, runs ...Report) error {
	rows := [][]string{{"client", "policy", "queue", "nodes", "requests", "refused", "hit %", "first token p50", "p99", "queued p99", "tokens/s"}}
	for i := range runs {
		r := &runs[i]
		for _, c := range r.Clients {
			rows = append(rows, []string{c.Name, r.Policy, r.Queueing, fmt.Sprint(r.Nodes), fmt.Sprint(c.Requests), fmt.Sprint(c.Refused),
				percent(c.HitRate), span(c.TTFT.P50), span(c.TTFT.P99), span(c.Queue.P99), fmt.Sprintf("%.0f", c.Goodput)})
		}
	}
	return WriteRows(w, rows)
}

// WriteRows writes rows of equal length as aligned text; the first has the headings.
func WriteRows(w io.Writer, rows [][]string) error {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for c, cell := range row {
			width[c] = max(width[c], len(cell))
		}
	}
	var rule []string
	for _, n := range width {
		rule = append(rule, strings.Repeat("-", n))
	}
	width[0] = -width[0] // aligned to the left
	var text string
	for _, row := range slices.Insert(rows, 1, rule) {
		for c, cell := range row {
			row[c] = fmt.Sprintf("%*s", width[c], cell)
		}
		text += strings.Join(row, "  ") + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

func rate(bytes float64) string {
	for _, unit := range []string{"B/s", "kB/s"} {
		if bytes < 1000 {
			return fmt.Sprintf("%.3g %s", bytes, unit)
		}
		bytes /= 1000
	}
	return fmt.Sprintf("%.3g MB/s", bytes)
}

func span(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 100_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	default:
		return fmt.Sprintf("%.0f s", ms/1000)
	}
}

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const boardsDir = "../deploy/grafana/"

// board is a Grafana dashboard as this file states it; its panels' descriptions and units follow from the metrics.
type board struct {
	file, title string
	filters     []string // further variables, each a label: the values of one may be selected
	rows        []boardRow
}

type boardRow struct {
	title     string
	panels    []panel
	collapsed bool
}

type panel struct {
	title   string
	unit    string // "": by the name of the metric
	stat    bool   // the last value in large letters, not a curve
	queries []query
}

// query is PromQL without the filters of the board, which json adds to each metric; [R] is Grafana's interval for rates.
type query struct{ legend, expr string }

func one(title, legend, expr string) panel {
	return panel{title: title, queries: []query{{legend, expr}}}
}

func in(unit string, p panel) panel { p.unit = unit; return p }

func stat(title, unit, expr string) panel {
	return panel{title: title, unit: unit, stat: true, queries: []query{{title, expr}}}
}

// quantiles are those of a histogram, over all or by a label.
func quantiles(title, metric string) panel {
	p := panel{title: title}
	for _, q := range []string{"0.5", "0.9", "0.99"} {
		p.queries = append(p.queries, query{"p" + strings.TrimPrefix(q+"0", "0.")[:2], "histogram_quantile(" + q + ", sum by (le) (rate(" + metric + "_bucket[R])))"})
	}
	return p
}

func quantile(title, q, metric, label string) panel {
	return one(title, "{{"+label+"}}", fmt.Sprintf("histogram_quantile(%s, sum by (le, %s) (rate(%s_bucket[R])))", q, label, metric))
}

func mean(title, metric, label string) panel {
	return one(title, "{{"+label+"}}", fmt.Sprintf("sum by (%s) (rate(%s_sum[R])) / sum by (%[1]s) (rate(%[2]s_count[R]))", label, metric))
}

const (
	cachedRate = `sum(rate(grapevine_tokens_total{type="cached"}[R])) / sum(rate(grapevine_tokens_total{type="prompt"}[R]))`
	errorRate  = `sum(rate(grapevine_requests_total{code=~"5.."}[R])) / sum(rate(grapevine_requests_total[R]))`
)

func boards() []board {
	return []board{
		{
			file: "overview", title: "grapevine / overview", filters: []string{"model"},
			rows: []boardRow{
				{title: "Now", panels: []panel{
					stat("Routers ready", "short", "sum(grapevine_ready)"),
					stat("Engines active", "short", `max(grapevine_backends{state="active"})`),
					stat("Engines down", "short", `max(grapevine_backends{state="down"})`),
					stat("Requests/s", "reqps", "sum(rate(grapevine_requests_total[R]))"),
					stat("Errors (5xx)", "percentunit", errorRate),
					stat("First token, p99", "s", "histogram_quantile(0.99, sum by (le) (rate(grapevine_time_to_first_token_seconds_bucket[R])))"),
					stat("Prompt tokens cached", "percentunit", cachedRate),
					stat("Waiting in the queue", "short", "sum(grapevine_queue_requests)"),
				}},
				{title: "Requests", panels: []panel{
					in("reqps", one("Requests by status", "{{code}}", "sum by (code) (rate(grapevine_requests_total[R]))")),
					in("percentunit", one("Share of 5xx", "5xx", errorRate)),
					one("In flight", "{{instance}}", "grapevine_requests_in_flight"),
					quantiles("First token", "grapevine_time_to_first_token_seconds"),
					quantile("First token by model, p99", "0.99", "grapevine_time_to_first_token_seconds", "model"),
					quantile("Duration by model, p99", "0.99", "grapevine_request_duration_seconds", "model"),
					mean("Time per output token by model", "grapevine_time_per_output_token_seconds", "model"),
					in("reqps", one("Retries, and clients that left", "{{stage}}", "sum by (stage) (rate(grapevine_cancels_total[R]))").and("retries", "sum(rate(grapevine_retries_total[R]))")),
					quantiles("The router's own time", "grapevine_overhead_seconds"),
				}},
				{title: "Caches", panels: []panel{
					in("percentunit", one("Prompt tokens cached by model", "{{model}}", `sum by (model) (rate(grapevine_tokens_total{type="cached"}[R])) / sum by (model) (rate(grapevine_tokens_total{type="prompt"}[R]))`)),
					in("reqps", one("Decisions by rung", "{{rung}}", "sum by (rung) (rate(grapevine_decisions_total[R]))")),
					quantile("First token by rung, p50", "0.5", "grapevine_rung_time_to_first_token_seconds", "rung"),
					in("short", one("What choosing a cache saves, and costs in waits", "{{kind}}", "sum by (kind) (grapevine_affinity_load)")),
					quantile("Error of the prediction, p90", "0.9", "grapevine_prediction_error_tokens", "side"),
					one("Tokens", "{{type}}", "sum by (type) (rate(grapevine_tokens_total[R]))"),
				}},
				{title: "Queue and limits", panels: []panel{
					one("Waiting", "{{priority}}", "sum by (priority) (grapevine_queue_requests)"),
					quantile("Wait by priority, p99", "0.99", "grapevine_queue_wait_seconds", "priority"),
					quantile("Wait by model, p99", "0.99", "grapevine_queue_wait_seconds", "model"),
					in("reqps", one("Refused by the queue", "{{priority}} {{reason}}", "sum by (priority, reason) (rate(grapevine_queue_refused_total[R]))")),
					in("reqps", one("Refused by clients' limits", "{{client}} {{reason}}", "sum by (client, reason) (rate(grapevine_client_refused_total[R]))")),
					one("Memory of bodies", "{{instance}}", "grapevine_body_memory_bytes"),
				}},
			},
		},
		{
			file: "engines", title: "grapevine / engines", filters: []string{"backend"},
			rows: []boardRow{
				{title: "State", panels: []panel{
					one("Engines by agreed state", "{{state}}", "max by (state) (grapevine_backends)"),
					one("Engines that are not active", "{{backend}} {{state}}", `max by (backend, state) (grapevine_backend_state{state!="active"}) > 0`),
					one("Failing by probes or requests", "{{backend}}", "max by (backend) (grapevine_backend_failing) > 0"),
					one("Avoided by routers", "{{instance}}", "grapevine_backends_avoided"),
					in("reqps", one("Failed requests", "{{backend}} {{outcome}}", `sum by (backend, outcome) (rate(grapevine_backend_requests_total{outcome!="ok"}[R])) > 0`)),
					in("ops", one("Probes", "{{found}}", "sum by (found) (rate(grapevine_probes_total[R]))")),
				}},
				{title: "Load", panels: []panel{
					in("reqps", one("Requests", "{{backend}}", "sum by (backend) (rate(grapevine_backend_requests_total[R]))")),
					one("Running requests of the routers that probe", "{{backend}}", "sum by (backend) (grapevine_backend_active_requests)"),
					one("Outstanding prefill of the routers that probe", "{{backend}}", "sum by (backend) (grapevine_backend_prefill_tokens)"),
					one("Learned prefill rate", "{{backend}}", "avg by (backend) (grapevine_backend_prefill_tokens_per_second)"),
					one("Age of the engine's own report", "{{backend}} {{from}}", "min by (backend, from) (grapevine_backend_report_age_seconds)"),
				}},
				{title: "Answers", panels: []panel{
					quantile("First token, p50", "0.5", "grapevine_backend_time_to_first_token_seconds", "backend"),
					quantile("First token, p99", "0.99", "grapevine_backend_time_to_first_token_seconds", "backend"),
					mean("Time per output token", "grapevine_backend_time_per_output_token_seconds", "backend"),
					mean("Duration", "grapevine_backend_request_duration_seconds", "backend"),
				}},
				{title: "Caches", panels: []panel{
					one("Horizon", "{{backend}}", "avg by (backend) (grapevine_backend_horizon_seconds)"),
					one("Known exactly", "{{backend}}", "max by (backend) (grapevine_backend_cache_exact)"),
					one("KV blocks by cache events", "{{backend}}", "max by (backend) (grapevine_backend_cache_blocks)"),
					in("ops", one("Batches of cache events", "{{backend}}", "sum by (backend) (rate(grapevine_cache_event_batches_total[R]))").
						and("{{backend}} missing", "sum by (backend) (rate(grapevine_cache_event_batches_missing_total[R])) > 0")),
					in("ops", one("Checks of events against answers", "{{result}}", "sum by (result) (rate(grapevine_cache_checks_total[R]))")),
				}},
			},
		},
		{file: "internals", title: "grapevine / fleet internals", rows: []boardRow{
			{title: "Process", panels: []panel{
				in("percentunit", one("CPU", "{{instance}}", "rate(process_cpu_seconds_total[R])")),
				one("Resident memory", "{{instance}}", "process_resident_memory_bytes"),
				one("Go heap in use", "{{instance}}", "go_memstats_heap_inuse_bytes"),
				one("Goroutines", "{{instance}}", "go_goroutines"),
				one("Certificates expire", "{{instance}} {{setting}}", "grapevine_tls_certificate_expiry_timestamp_seconds"),
				one("Open files", "{{instance}}", "process_open_fds").and("{{instance}} limit", "process_max_fds"),
			}},
		}},
	}
}

func (p panel) and(legend, expr string) panel {
	p.queries = append(p.queries, query{legend, expr})
	return p
}

// TestBoards compares deploy/grafana with boards and the registry. Metrics that no board names get a panel of their own on the last one,
// so that none is forgotten.
func TestBoards(t *testing.T) {
	registry := readRegistry(t)
	list := boards()
	last := &list[len(list)-1]
	last.rows = append(last.rows, registry.remaining(list)...)
	for _, b := range list {
		for _, row := range b.rows {
			for _, p := range row.panels {
				for _, q := range p.queries {
					if err := registry.check(q); err != nil {
						t.Errorf("%s, %s, %s: %v", b.title, row.title, p.title, err)
					}
				}
			}
		}
		text := registry.render(t, b)
		name := boardsDir + b.file + ".json"
		have, err := os.ReadFile(name)
		if *update {
			err = os.WriteFile(name, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !*update && !bytes.Equal(have, text) {
			t.Errorf("%s is out of date: go test ./node -run TestBoards -update", name)
		}
	}
}

// TestBoardsFitGrafana reads the boards as Grafana's own types: each field must be one of a dashboard, of its panels' options or of a query
// for Prometheus, of the right type, and none that those types require may be missing.
func TestBoardsFitGrafana(t *testing.T) {
	plugins.RegisterDefaultPlugins() // panels and queries by their type
	files, err := filepath.Glob(boardsDir + "*.json")
	if err != nil || len(files) != len(boards()) {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		misfits := func(text []byte) string {
			//lint:ignore SA1019 the boards are of the first version, which every Grafana in use reads
			if err := new(dashboard.Dashboard).UnmarshalJSONStrict(text); err != nil { //nolint:staticcheck // likewise
				return err.Error() // empty where the SDK returns an empty list of errors
			}
			return ""
		}
		if text := misfits(text); text != "" {
			t.Errorf("%s: %s", name, text)
		}
		for _, wrong := range []struct{ of, by string }{{`"legendFormat"`, `"legend"`}, {`"expr": "`, `"expr": 1, "x": "`}, {`"graphMode": "area"`, `"graphMode": 1`}, {`"placement"`, `"place"`}} {
			if ill := strings.Replace(string(text), wrong.of, wrong.by, 1); ill != string(text) && misfits([]byte(ill)) == "" {
				t.Errorf("%s is said to fit with %s for %s", name, wrong.by, wrong.of)
			}
		}
	}
}

// areas are the rows of metrics without a panel, by the beginning of their names; the last takes the rest.
var areas = []struct {
	title    string
	prefixes []string
}{
	{"Nodes and gossip", []string{"ready", "members", "warm_", "staleness_", "blind_", "peer_", "gossip_"}},
	{"Agreement", []string{"raft_", "state_", "health_", "hot_", "source_"}},
	{"Tree", []string{"tree_"}},
	{"Clients", []string{"client"}},
	{"Requests", []string{""}},
}

func (r registry) remaining(list []board) []boardRow {
	shown := make(map[string]bool)
	for _, b := range list {
		for _, row := range b.rows {
			for _, p := range row.panels {
				for _, q := range p.queries {
					for _, s := range selectors(q.expr) {
						shown[s.metric] = true
						shown[r.family(s.metric)] = true
					}
				}
			}
		}
	}
	rows := make([]boardRow, len(areas))
	for i, a := range areas {
		rows[i].title, rows[i].collapsed = a.title, true
	}
	for _, name := range r.names {
		if shown[name] || ofTheRuntime(name) {
			continue
		}
		short := strings.TrimPrefix(name, "grapevine_")
		i := slices.IndexFunc(areas[:], func(a struct {
			title    string
			prefixes []string
		},
		) bool {
			return slices.ContainsFunc(a.prefixes, func(p string) bool { return strings.HasPrefix(short, p) })
		})
		rows[i].panels = append(rows[i].panels, r.plain(name))
	}
	return rows
}

// plain shows a metric by its labels or, without any, by router.
func (r registry) plain(name string) panel {
	title := strings.ReplaceAll(strings.TrimPrefix(name, "grapevine_"), "_", " ")
	for _, unit := range []string{" total", " seconds", " bytes"} {
		title = strings.TrimSuffix(title, unit)
	}
	title = strings.ToUpper(title[:1]) + title[1:]
	labels, f := r.labels[name], r.families[name]
	by, legend := "instance", "{{instance}}"
	if len(labels) > 0 {
		by, legend = strings.Join(labels, ", "), "{{"+strings.Join(labels, "}} {{")+"}}"
	}
	switch f.kind {
	case "histogram":
		return one(title+", p99", legend, fmt.Sprintf("histogram_quantile(0.99, sum by (le, %s) (rate(%s_bucket[R])))", by, name))
	case "counter":
		return one(title, legend, fmt.Sprintf("sum by (%s) (rate(%s[R]))", by, name))
	}
	if strings.HasSuffix(f.help, "Not additive.") {
		return one(title, legend, fmt.Sprintf("max by (%s) (%s)", by, name))
	}
	return one(title, legend, fmt.Sprintf("sum by (%s) (%s)", by, name))
}

// unitOf is Grafana's name for the unit of a metric, or of its rate.
func unitOf(metric string) string {
	for _, u := range []struct{ suffix, unit string }{
		{"_timestamp_seconds", "dateTimeFromNow"}, {"_per_second", "short"}, {"_seconds_total", "short"}, {"_bytes_total", "Bps"}, {"_total", "ops"},
		{"_seconds_bucket", "s"}, {"_seconds_sum", "s"}, {"_seconds", "s"}, {"_bytes", "bytes"}, {"_ratio", "percentunit"},
	} {
		if strings.HasSuffix(metric, u.suffix) {
			return u.unit
		}
	}
	return "short"
}

type object = map[string]any

func (r registry) render(t *testing.T, b board) []byte {
	t.Helper()
	source := object{"type": "prometheus", "uid": "${datasource}"}
	panels, y, count := []object{}, 0, 0
	numbered := func(p object) object {
		count++
		p["id"] = count
		return p
	}
	for _, row := range b.rows {
		if len(row.panels) == 0 {
			continue
		}
		heading := object{"type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []object{}, "gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}}
		panels, y = append(panels, numbered(heading)), y+1
		width, height := 8, 8
		if row.panels[0].stat {
			width, height = 3, 4
		}
		for i, p := range row.panels {
			at := object{"h": height, "w": width, "x": i * width % 24, "y": y + i*width/24*height}
			shown := numbered(r.panel(b, p, source, at))
			if row.collapsed {
				heading["panels"] = append(heading["panels"].([]object), shown)
			} else {
				panels = append(panels, shown)
			}
		}
		if !row.collapsed {
			y += (len(row.panels)*width + 23) / 24 * height
		}
	}
	variables := []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
		variable("job", `grapevine_ready`), variable("instance", `grapevine_ready{job=~"$job"}`),
	}
	for _, label := range b.filters {
		variables = append(variables, variable(label, map[string]string{
			"model": `grapevine_time_to_first_token_seconds_count{job=~"$job"}`, "backend": `grapevine_backend_state{job=~"$job"}`,
		}[label]))
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(object{
		"uid": "grapevine-" + b.file, "title": b.title, "tags": []string{"grapevine"}, "schemaVersion": 39, "editable": true, "refresh": "30s",
		"time": object{"from": "now-1h", "to": "now"}, "templating": object{"list": variables}, "panels": panels,
		"links": []object{{
			"type": "dashboards", "tags": []string{"grapevine"}, "title": "grapevine", "asDropdown": true, "includeVars": true, "keepTime": true,
			"icon": "external link", "tooltip": "the other boards of grapevine", "targetBlank": false,
		}},
		"annotations": object{"list": []object{}},
	}); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func variable(label, metric string) object {
	return object{
		"name": label, "label": strings.ToUpper(label[:1]) + label[1:], "type": "query", "datasource": object{"type": "prometheus", "uid": "${datasource}"},
		"query": "label_values(" + metric + ", " + label + ")", "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"text": "All", "value": "$__all"},
	}
}

func (r registry) panel(b board, p panel, source, at object) object {
	targets, help := []object{}, []string{}
	for i, q := range p.queries {
		expr := strings.ReplaceAll(q.expr, "[R]", "[$__rate_interval]")
		expr = selector.ReplaceAllStringFunc(expr, func(s string) string { return r.filtered(s, b.filters) })
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": source, "expr": expr, "legendFormat": q.legend, "exemplar": strings.Contains(expr, "_bucket")})
		for _, s := range selectors(q.expr) {
			family := r.family(s.metric)
			if text := family + ": " + r.families[family].help; !slices.Contains(help, text) {
				help = append(help, text)
			}
		}
	}
	unit := p.unit
	if unit == "" {
		unit = unitOf(selectors(p.queries[0].expr)[0].metric)
	}
	if unit == "dateTimeFromNow" { // Grafana counts milliseconds
		targets[0]["expr"] = "1000 * " + targets[0]["expr"].(string)
	}
	defaults, kind := object{"unit": unit, "min": 0}, "timeseries"
	options := object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	if strings.Contains(p.queries[0].expr, "_offset_") {
		delete(defaults, "min")
	}
	if p.stat {
		kind, options = "stat", object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "colorMode": "none", "graphMode": "area", "justifyMode": "auto", "textMode": "auto",
			"wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard", "orientation": "auto",
		}
	}
	return object{
		"type": kind, "title": p.title, "description": strings.Join(help, "\n\n"), "datasource": source, "gridPos": at, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}}, "options": options,
	}
}

// filtered adds the board's variables to a selector, those that the metric has as labels.
func (r registry) filtered(s string, filters []string) string {
	name, matchers, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
	list := []string{`job=~"$job"`, `instance=~"$instance"`}
	for _, label := range filters {
		if slices.Contains(r.labels[r.family(name)], label) {
			list = append(list, label+`=~"$`+label+`"`)
		}
	}
	if matchers != "" {
		list = append(list, matchers)
	}
	return name + "{" + strings.Join(list, ", ") + "}"
}

package node

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type family struct{ kind, help string } // kind: counter, gauge, histogram, summary

// registry is what a node exports, with every label.
type registry struct {
	names    []string // in order
	families map[string]family
	labels   map[string][]string        // by metric
	values   map[string]map[string]bool // by metric and label
}

func readRegistry(t *testing.T) registry {
	t.Helper()
	families, err := everyMetric(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	r := registry{families: map[string]family{"up": {kind: "gauge"}}, labels: make(map[string][]string), values: make(map[string]map[string]bool)}
	for _, f := range families {
		name := f.GetName()
		r.names = append(r.names, name)
		r.families[name] = family{strings.ToLower(f.GetType().String()), f.GetHelp()}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if key := name + "/" + l.GetName(); r.values[key] == nil {
					r.values[key] = make(map[string]bool)
					r.labels[name] = append(r.labels[name], l.GetName())
				}
				r.values[name+"/"+l.GetName()][l.GetValue()] = true
			}
		}
	}
	return r
}

// family returns the metric of a series' name: a histogram has three kinds.
func (r registry) family(series string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, ok := strings.CutSuffix(series, suffix); ok && r.families[name].kind == "histogram" {
			return name
		}
	}
	return series
}

// A query names metrics of ours, of the runtime, and Prometheus' own up; promtool reads the rest of its syntax.
var (
	selector = regexp.MustCompile(`\b(?:up|(?:grapevine|go|process)_[a-z_]+)\b(?:\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)`)
	inLegend = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)
)

type selected struct {
	metric   string
	matchers [][]string // label, operator, value
}

func selectors(expr string) (list []selected) {
	for _, s := range selector.FindAllString(expr, -1) {
		name, matchers, _ := strings.Cut(s, "{")
		var m [][]string
		for _, parts := range matcher.FindAllStringSubmatch(matchers, -1) {
			m = append(m, parts[1:])
		}
		list = append(list, selected{name, m})
	}
	return list
}

// openValues are labels whose values no list holds.
var openValues = []string{"backend", "model", "peer", "client", "source", "code", "setting", "job", "instance"}

// check finds metrics, labels and values of labels that no node exports.
func (r registry) check(q query) error {
	known := map[string]bool{"job": true, "instance": true}
	found := selectors(q.expr)
	if len(found) == 0 {
		return fmt.Errorf("%s names no metric", q.expr)
	}
	for _, s := range found {
		family := r.family(s.metric)
		f, exists := r.families[family]
		switch {
		case !exists:
			return fmt.Errorf("there is no metric %s", s.metric)
		case f.kind == "histogram" && family == s.metric:
			return fmt.Errorf("%s is a histogram: use its _bucket, _sum or _count", s.metric)
		}
		known["le"] = known["le"] || strings.HasSuffix(s.metric, "_bucket")
		for _, label := range r.labels[family] {
			known[label] = true
		}
		for _, m := range s.matchers {
			label, operator, value := m[0], m[1], m[2]
			switch {
			case label != "job" && label != "instance" && !slices.Contains(r.labels[family], label):
				return fmt.Errorf("%s has no label %s", s.metric, label)
			case len(operator) == 1 || operator == "!=":
				if !slices.Contains(openValues, label) && !r.values[family+"/"+label][value] {
					return fmt.Errorf("%s has no %s %q", s.metric, label, value)
				}
			}
		}
	}
	aggregated := []string(nil)
	for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !known[label] {
				return fmt.Errorf("no metric of %s has the label %s", q.expr, label)
			}
			aggregated = append(aggregated, label)
		}
	}
	for _, l := range inLegend.FindAllStringSubmatch(q.legend, -1) {
		if !known[l[1]] || len(aggregated) > 0 && !slices.Contains(aggregated, l[1]) {
			return fmt.Errorf("the legend %q has a label that %s does not keep", q.legend, q.expr)
		}
	}
	return nil
}

func TestQueriesAreChecked(t *testing.T) {
	r := readRegistry(t)
	for expr, problem := range map[string]string{
		`sum(grapevine_ready)`:                                                    "",
		`grapevine_no_such_metric`:                                                "no metric",
		`sum by (rung) (grapevine_ready)`:                                         "label rung",
		`sum by (le) (grapevine_ready)`:                                           "label le",
		`grapevine_backends{status="down"}`:                                       "no label status",
		`grapevine_backends{state="broken"}`:                                      `no state "broken"`,
		`grapevine_backends{state!="gone"}`:                                       `no state "gone"`,
		`rate(grapevine_requests_total{code=~"5.."}[5m])`:                         "",
		`grapevine_backend_failing{backend="x"}`:                                  "",
		`grapevine_time_to_first_token_seconds`:                                   "histogram",
		`sum by (le, model) (rate(grapevine_time_to_first_token_seconds_bucket[]`: "",
		`grapevine_ready_total`:                                                   "no metric",
		`up == 0`:                                                                 "",
		`vector(1)`:                                                               "names no metric",
		`go_goroutines{pool="x"}`:                                                 "no label pool",
	} {
		err := r.check(query{"", expr})
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", expr, err, problem)
		}
	}
	for legend, ok := range map[string]bool{"{{state}}": true, "{{backend}}": false, "{{instance}}": false, "": true} {
		if err := r.check(query{legend, `sum by (state) (grapevine_backends)`}); (err == nil) != ok {
			t.Errorf("legend %q: %v", legend, err)
		}
	}
}

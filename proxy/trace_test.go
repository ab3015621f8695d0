package proxy

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseTrace(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for text, want := range map[string]struct{ known, sampled bool }{
		"00-" + id + "-" + parent + "-01":                                 {true, true},
		"00-" + id + "-" + parent + "-00":                                 {true, false},
		"00-" + id + "-" + parent + "-03":                                 {true, true},
		"cc-" + id + "-" + parent + "-01-later":                           {true, true},
		"00-" + id + "-" + parent + "-01-later":                           {},
		"cc-" + id + "-" + parent + "-01later":                            {},
		"ff-" + id + "-" + parent + "-01":                                 {},
		"00-00000000000000000000000000000000-" + parent + "-01":           {},
		"00-" + id + "-0000000000000000-01":                               {},
		"00-0AF7651916CD43DD8448EB211C80319C-" + parent + "-01":           {},
		"00-" + id + "-" + parent:                                         {},
		"":                                                                {},
		"00-" + id + "_" + parent + "-01":                                 {},
		"0x-" + id + "-" + parent + "-01":                                 {},
		"00-" + id + "-" + parent + "-0g":                                 {},
		"00-" + "0af7651916cd43dd8448eb211c80319-" + parent + "-01234567": {},
	} {
		got := parseTrace([]byte(text))
		if known := got != (Trace{}); known != want.known || got.Sampled != want.sampled {
			t.Errorf("%q: %+v", text, got)
		}
		if want.known && (got.ID[0] != 0x0a || got.ID[15] != 0x9c || got.Parent[7] != 0x31) {
			t.Errorf("%q: %x %x", text, got.ID, got.Parent)
		}
	}
}

// TestTracing: the engine's parent is the router's span, where the router records one.
func TestTracing(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const sampled, unsampled = "00-" + id + "-" + parent + "-01", "00-" + id + "-" + parent + "-00"
	for name, test := range map[string]struct {
		on          bool
		share       float64
		trace       string
		state       string
		span, begun bool
		passed      string // tracestate
	}{
		"off":                    {trace: sampled, state: "a=1", passed: "a=1"},
		"off, no trace":          {},
		"caller records":         {on: true, trace: sampled, state: "a=1", span: true, passed: "a=1"},
		"caller does not record": {on: true, share: 1, trace: unsampled, state: "a=1", passed: "a=1"},
		"no caller":              {on: true, share: 1, span: true, begun: true},
		"no caller, no share":    {on: true},
		"malformed":              {on: true, share: 1, trace: "00-zz", state: "a=1", span: true, begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, false, answering)
			r := newRig(t, []string{b.addr}, withConfig(func(c *Config) { c.Tracing, c.TraceShare = test.on, test.share }))
			var headers []string
			for name, value := range map[string]string{"traceparent": test.trace, "TraceState": test.state} {
				if value != "" {
					headers = append(headers, name+": "+value)
				}
			}
			r.raw(request("POST", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, headers...)).want(t, 200)
			rec, got := r.record(0), b.requests()[0].Header
			if rec.Trace.Recorded() != test.span || test.span != (rec.Picked >= rec.Parsed && rec.Parsed > 0) {
				t.Fatalf("trace %+v, parsed %v, picked %v", rec.Trace, rec.Parsed, rec.Picked)
			}
			if passed := got.Values("Tracestate"); len(passed) > 1 || got.Get("Tracestate") != test.passed {
				t.Errorf("tracestate %q, want %q", passed, test.passed)
			}
			want := test.trace
			if test.span {
				at := parseTrace([]byte(got.Get("Traceparent")))
				want = fmt.Sprintf("00-%x-%x-01", rec.Trace.ID, rec.Trace.Span)
				if !at.Sampled || at.ID != rec.Trace.ID || at.Parent != rec.Trace.Span || (rec.Trace.Parent == [8]byte{}) != test.begun {
					t.Errorf("the engine's trace is %+v, the router's %+v", at, rec.Trace)
				}
				if before := parseTrace([]byte(test.trace)); !test.begun && (rec.Trace.ID != before.ID || rec.Trace.Parent != before.Parent) {
					t.Errorf("%+v does not follow %s", rec.Trace, test.trace)
				}
			}
			if passed := got.Values("Traceparent"); strings.Join(passed, ",") != want {
				t.Errorf("traceparent %q, want %q", passed, want)
			}
		})
	}
}

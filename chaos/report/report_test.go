package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sample(at time.Duration, session, turn, backend, prompt, cached int) Sample {
	return Sample{At: at, End: at + 2*time.Second, Session: session, Turn: turn, Backend: backend, PromptTokens: prompt,
		CachedTokens: cached, OutputTokens: 10, Predicted: -1, TTFT: 500 * time.Millisecond, Overhead: -1, Rung: "cache"}
}

func TestReportSums(t *testing.T) {
	var r Recorder
	b := sample(2*time.Second, 1, 2, 0, 200, 100)
	b.Predicted = 150
	r.Add(b)
	r.Add(sample(1*time.Second, 1, 1, 0, 100, 0))
	r.Add(sample(3*time.Second, 1, 3, 2, 300, 0))
	unknown := sample(4*time.Second, -1, 0, 1, -1, -1)
	unknown.Overhead = 80 * time.Microsecond
	r.Add(unknown)
	failed := sample(5*time.Second, 2, 1, 1, 1000, 1000)
	failed.Failed = true
	failed.End = 9 * time.Second
	r.Add(failed)
	cut := failed
	cut.At, cut.Cut, cut.Backend = 6*time.Second, true, -1
	r.Add(cut)

	rep := r.Report(Setting{Policy: "prefix", Nodes: 1, Backends: 4, Seed: 3, Busy: []float64{0.5, 0.5, 0, 1}})
	if rep.Requests != 6 || rep.Errors != 1 || rep.Cut != 1 || rep.PromptTokens != 600 || rep.CachedTokens != 100 || rep.HitRate != 0.166667 {
		t.Errorf("sums: %+v", rep)
	}
	if rep.FollowupRequests != 2 || rep.FollowupCached != 0.2 || rep.FollowupSameBackend != 0.5 {
		t.Errorf("follow-ups: %d, %v cached, %v same", rep.FollowupRequests, rep.FollowupCached, rep.FollowupSameBackend)
	}
	// Requests 2, 2, 1, 0: mean 1.25, deviation sqrt(0.6875).
	if want := round(math.Sqrt(0.6875) / 1.25); rep.LoadCov != want {
		t.Errorf("load_cov %v, want %v", rep.LoadCov, want)
	}
	if rep.Prediction.Mean != 50 || rep.Prediction.P95 != 50 || rep.Prediction.Share != 0.25 || rep.Prediction.Requests != 1 {
		t.Errorf("prediction: %+v", rep.Prediction)
	}
	if rep.TTFT.P50 != 500 || rep.E2E.P99 != 2000 || rep.RouterOverhead.Mean != 80 || rep.DurationS != 8 || rep.Utilization != 0.5 {
		t.Errorf("times: %+v", rep)
	}
	if rep.Rungs["cache"] != 6 {
		t.Errorf("rungs: %v", rep.Rungs)
	}
}

func TestWarmupIsLeftOutButRemembered(t *testing.T) {
	var r Recorder
	r.Add(sample(1*time.Second, 1, 1, 3, 100, 0))
	r.Add(sample(11*time.Second, 1, 2, 3, 200, 100))
	rep := r.Report(Setting{Backends: 4, Warmup: 10 * time.Second})
	if rep.Requests != 1 || rep.WarmupRequests != 1 || rep.PromptTokens != 200 || rep.Backends[3].Requests != 1 {
		t.Errorf("%+v", rep)
	}
	if rep.FollowupSameBackend != 1 {
		t.Error("the turn before, in the warm-up, was forgotten")
	}
	if rep.DurationS != 3 {
		t.Errorf("duration %v, want 10 s to 13 s", rep.DurationS)
	}
}

func TestQuantilesAreExact(t *testing.T) {
	v := make([]float64, 1000)
	for i, p := range rand.New(rand.NewPCG(1, 1)).Perm(1000) {
		v[i] = float64(p + 1)
	}
	if q := Summarise(v); q != (Quantiles{Mean: 500.5, P50: 500, P90: 900, P99: 990}) {
		t.Errorf("%+v", q)
	}
	if q := Summarise([]float64{7}); q != (Quantiles{7, 7, 7, 7}) {
		t.Errorf("%+v", q)
	}
}

func TestJSONShape(t *testing.T) {
	published := `{"requests":0,"errors":0,"duration_s":0,"prompt_tokens":0,"cached_tokens":0,"hit_rate":0,
 "followup_cached":0,"followup_same_backend":0,"load_cov":0,"rungs":{"cache":0},
 "ttft_ms":{"mean":0,"p50":0,"p90":0,"p99":0},"e2e_ms":{"mean":0,"p50":0,"p90":0,"p99":0},"router_overhead_us":{},
 "prediction_error_tokens":{"mean":0,"p95":0},
 "gossip":{"bytes_per_s_per_node":0,"convergence_ms":{"p50":0,"p99":0}},
 "backends":[{"id":0,"requests":0,"prompt_tokens":0,"cached_tokens":0}],"seed":0,"policy":"","nodes":0}`
	var want, got map[string]any
	if err := json.Unmarshal([]byte(published), &want); err != nil {
		t.Fatal(err)
	}
	var r Recorder
	r.Add(sample(0, 1, 1, 0, 1, 0))
	rep := r.Report(Setting{Backends: 1})
	var one, many bytes.Buffer
	if err := errors.Join(WriteJSON(&one, rep), WriteJSON(&many, rep, rep)); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(one.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	contains(t, "", got, want)
	var runs struct{ Runs []json.RawMessage }
	if err := json.Unmarshal(many.Bytes(), &runs); err != nil || len(runs.Runs) != 2 {
		t.Errorf("%d runs in %s: %v", len(runs.Runs), many.Bytes(), err)
	}
}

func contains(t *testing.T, path string, got, want any) {
	t.Helper()
	if reflect.TypeOf(got) != reflect.TypeOf(want) {
		t.Errorf("%s is %T, want %T", path, got, want)
		return
	}
	switch w := want.(type) {
	case map[string]any:
		for k, v := range w {
			contains(t, path+"."+k, got.(map[string]any)[k], v)
		}
	case []any:
		contains(t, path+"[]", got.([]any)[0], w[0])
	}
}

func runs(n, backends int) []Report {
	rng := rand.New(rand.NewPCG(7, 7))
	names := []string{"prefix", "prefix-hash", "least-request", "session", "round-robin", "random", "weighted", "argmin", "lmetric", "two-choice", "sglang"}
	var out []Report
	for i := range n {
		var r Recorder
		for j := range 3000 {
			s := sample(time.Duration(j)*time.Second, j%400, 1+j/400, rng.IntN(backends), 10000, int(rng.Float64()*10000/float64(i+1)))
			s.TTFT = time.Duration(float64(50*time.Millisecond) * math.Exp(rng.NormFloat64()+float64(i)))
			s.Predicted = s.CachedTokens + rng.IntN(300)
			r.Add(s)
		}
		out = append(out, r.Report(Setting{Policy: names[i%len(names)], Workload: "weka_claude_code", Nodes: 1, Backends: backends, Speed: 2}))
	}
	return out
}

func TestTableIsAligned(t *testing.T) {
	var b bytes.Buffer
	if err := WriteTable(&b, runs(5, 16)...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) != 7 {
		t.Fatalf("%d lines:\n%s", len(lines), b.String())
	}
	for _, l := range lines {
		if len(l) != len(lines[0]) {
			t.Errorf("ragged:\n%s", b.String())
			break
		}
	}
	if strings.Contains(lines[0], "router p99") || strings.Contains(lines[0], "busy") {
		t.Errorf("columns without figures: %s", lines[0])
	}
}

func TestPlots(t *testing.T) {
	dir := os.Getenv("PLOT_DIR")
	if dir == "" {
		dir = t.TempDir()
	}
	for _, c := range []struct {
		file        string
		n, backends int
	}{{"many.svg", 11, 16}, {"two.svg", 2, 8}, {"one.svg", 1, 240}} {
		path := filepath.Join(dir, c.file)
		if err := WritePlot(path, runs(c.n, c.backends)...); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"prefix", "weka_claude_code, ", "time of arrival (min)", "99th percentile", "<svg"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %q", c.file, want)
			}
		}
		for d := xml.NewDecoder(bytes.NewReader(b)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", c.file, err)
			}
		}
	}
	if err := WritePlot(filepath.Join(dir, "x.png"), runs(1, 2)...); !errors.Is(err, ErrPlot) {
		t.Errorf("an unknown format: %v", err)
	}
	if err := WritePlot(filepath.Join(dir, "x.svg"), Report{}); !errors.Is(err, ErrPlot) {
		t.Errorf("nothing to draw: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".report-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestSharingIsTold(t *testing.T) {
	ms := 200.0
	runs := []Report{
		{Policy: "prefix", Nodes: 8, Sharing: &Sharing{Share: "both", StalenessMS: &ms}, Gossip: Gossip{BytesPerSPerNode: 3900}},
		{Policy: "prefix", Nodes: 8, Sharing: &Sharing{Share: "none"}},
		{Policy: "prefix", Nodes: 1, Sharing: &Sharing{Share: "both", StalenessMS: &ms}},
	}
	var b strings.Builder
	if err := WriteJSON(&b, runs...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"share":"both","staleness_ms":200,"loss":0`, `"share":"none","staleness_ms":null`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("JSON lacks %s: %s", want, b.String())
		}
	}
	b.Reset()
	if err := WriteJSON(&b, Report{Policy: "prefix"}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "staleness") {
		t.Errorf("a live run reports a staleness: %s", b.String())
	}
	b.Reset()
	if err := WriteTable(&b, runs...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, want := range [][]string{{"share", "staleness", "gossip per node"}, nil, {"both", "200ms", "3.9 kB/s"}, {"none"}, {"-"}} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d of the table lacks %q: %s", i, w, lines[i])
			}
		}
	}
	for i, want := range []string{"prefix, 8 nodes, both, 200ms", "prefix, 8 nodes, none, none", "prefix, 1 nodes, -, -"} {
		if got := name(runs, i); got != want {
			t.Errorf("the legend has %q, want %q", got, want)
		}
	}
}

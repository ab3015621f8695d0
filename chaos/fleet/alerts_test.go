package fleet_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"grapevine.example/chaos/engine"
	"grapevine.example/chaos/fleet"
)

const (
	alertsEnv = "GRAPEVINE_ALERTS"
	deployDir = "../../deploy/"
	// alertSpeed divides every duration of the rules: ten minutes become ten seconds.
	alertSpeed = 60
	// alertEvery is how often Prometheus scrapes and evaluates, and how long a scrape may take. A busy machine needs more than the 250 ms
	// that 15 s would become: a scrape that fails ends every alert that waits for its time.
	alertEvery = 500 * time.Millisecond
)

// TestAlerts lets a Prometheus watch three routers that are broken on purpose: each alert of a fault fires while the fault lasts, and
// clears. The rules are those of deploy/prometheus with every duration divided by alertSpeed; thresholds are as they are.
func TestAlerts(t *testing.T) {
	if os.Getenv(alertsEnv) == "" {
		t.Skip("make test-alerts")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	source := filepath.Join(t.TempDir(), "engines") // does not exist yet, so the source fails
	f := start(t, fleet.Config{
		Nodes: 3, Engines: 3, Engine: fastEngine(), Certificates: true, Seed: 1,
		Balancer: fleet.BalancerConfig{Interval: 100 * time.Millisecond},
		Settings: map[string]any{
			"log_level": "info", "drain_grace": "15s", "drain_close": "0s", "backends_from": []string{"file:" + source},
		},
	})
	p := startPrometheus(ctx, t, f)
	clients := startTalk(ctx, t, f)

	p.await(ctx, t, "a source is missing", "SourceFailing")
	if err := os.WriteFile(source, []byte(f.Engine("engine-0").URL()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.awaitEnd(ctx, t, "SourceFailing")

	stopEngine := f.Engine("engine-2")
	p.fault(ctx, t, "an engine is down", stopEngine.Stop, stopEngine.Start, "EngineFailing", "EnginesLost")

	inject := func(kind string) error {
		for _, e := range f.Engines() {
			if err := e.Server().Inject(engine.Fault{Kind: kind}); err != nil {
				return err
			}
		}
		return nil
	}
	p.fault(ctx, t, "engines answer 503", func() error { return inject("503") }, func() error { return inject("none") }, "Errors")

	stray := f.Node("node-2")
	restart := func(file string, text []byte) func() error {
		return func() error {
			if err := stray.Kill(); err != nil {
				return err
			}
			if err := os.WriteFile(file, text, 0o600); err != nil {
				return err
			}
			return stray.Start()
		}
	}
	encoded := func(key []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(key)) }
	p.fault(ctx, t, "a router has another gossip key", restart(stray.KeyFile(), encoded([]byte("0123456789abcdef0123456789abcdef"))),
		restart(stray.KeyFile(), encoded(f.Key())), "RefusesNodes")

	whole, alone := configs(t, stray)
	p.fault(ctx, t, "a router is without gossip", restart(stray.ConfigFile(), alone), restart(stray.ConfigFile(), whole), "MembershipDiffers", "TwoLeaders")

	ended := make(chan error, 1)
	p.fault(ctx, t, "a router drains", func() error {
		go func() { ended <- stray.Terminate(ctx) }()
		return nil
	}, func() error {
		if err := <-ended; err != nil {
			return err
		}
		return stray.Start()
	}, "NodeNotReady")

	two := []*fleet.Node{f.Node("node-0"), f.Node("node-1")}
	each := func(do func(*fleet.Node) error) func() error {
		return func() error {
			for _, n := range two {
				if err := do(n); err != nil {
					return err
				}
			}
			return nil
		}
	}
	p.fault(ctx, t, "two of three routers die", each((*fleet.Node).Kill), each((*fleet.Node).Start), "NodeDown", "FleetNotReady", "NoLeader")

	p.fault(ctx, t, "every prompt is new", func() error { clients.unique.Store(true); return nil },
		func() error { clients.unique.Store(false); return nil }, "HitRateFell")
	p.await(ctx, t, "certificates expire in a day", "CertificateExpires")
	for _, n := range f.Nodes() {
		if err := n.IssueCertificate(90 * fleet.CertificateLife); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitEnd(ctx, t, "CertificateExpires")
	p.checkBoards(ctx, t)
	for what, expr := range map[string]string{"slowest scrape": "max(max_over_time(scrape_duration_seconds[4m]))", "scrapes": "sum(count_over_time(up[4m]))"} {
		if v, err := p.query(ctx, expr); err == nil && len(v) == 1 {
			shown(t, what, v[0], "")
		}
	}
}

// configs returns the configuration of a node, and one in which nothing says that it is in a fleet.
func configs(t *testing.T, n *fleet.Node) (whole, alone []byte) {
	t.Helper()
	whole, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]any
	if err := yaml.Unmarshal(whole, &settings); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"gossip", "gossip_key_file", "gossip_cert", "gossip_cert_key", "gossip_ca", "join", "founders", "voters", "data_dir"} {
		delete(settings, key)
	}
	if alone, err = yaml.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	return whole, alone
}

// prometheus is a process that scrapes a fleet and evaluates its rules.
type prometheus struct {
	url string
}

func startPrometheus(ctx context.Context, t *testing.T, f *fleet.Fleet) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("%v: apt-get install prometheus", err)
	}
	dir := t.TempDir()
	rules, err := os.ReadFile(deployDir + "prometheus/grapevine.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rules.yml"), sooner(t, rules), 0o600); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, n := range f.Nodes() {
		targets = append(targets, n.AdminAddr())
	}
	every := alertEvery.String()
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
		"rule_files": []string{"rules.yml"},
		"scrape_configs": []any{map[string]any{
			"job_name": "grapevine", "static_configs": []any{map[string]any{"targets": targets}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	log := filepath.Join(dir, "log")
	stop, err := f.Beside(log, program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		if text, _ := os.ReadFile(log); t.Failed() {
			t.Logf("prometheus:\n%s", text[max(0, len(text)-4<<10):])
		}
	})
	p := &prometheus{url: "http://" + addr}
	p.until(ctx, t, "Prometheus scrapes all routers", func() bool {
		up, err := p.query(ctx, "sum(up)")
		return err == nil && len(up) == 1 && up[0] == float64(len(targets))
	}, &targets)
	return p
}

var (
	ruleDuration = regexp.MustCompile(`\b\d+[smhd]\b`)
	ruleRange    = regexp.MustCompile(`\[\d+[smhd]\]|offset \d+[smhd]`)
)

// sooner divides the durations of rules by alertSpeed: in for, ranges and offsets.
func sooner(t *testing.T, rules []byte) []byte {
	t.Helper()
	divide := func(text string) string {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatInt((d/alertSpeed).Milliseconds(), 10) + "ms"
	}
	var file map[string][]struct {
		Name  string
		Rules []map[string]any
	}
	if err := yaml.Unmarshal(rules, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file["groups"] {
		for _, rule := range group.Rules {
			rule["expr"] = ruleRange.ReplaceAllStringFunc(rule["expr"].(string), func(s string) string {
				return ruleDuration.ReplaceAllStringFunc(s, divide)
			})
			if wait, ok := rule["for"].(string); ok {
				rule["for"] = divide(wait)
			}
		}
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// fault requires that none of the alerts fires before it, all fire while it lasts, and all clear after it.
func (p *prometheus) fault(ctx context.Context, t *testing.T, what string, begin, end func() error, alerts ...string) {
	t.Helper()
	p.awaitEnd(ctx, t, alerts...)
	if err := begin(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	p.await(ctx, t, what, alerts...)
	if err := end(); err != nil {
		t.Fatalf("the end of %s: %v", what, err)
	}
	p.awaitEnd(ctx, t, alerts...)
}

// await waits until each of the alerts has fired since.
func (p *prometheus) await(ctx context.Context, t *testing.T, what string, alerts ...string) {
	t.Helper()
	began, missing := time.Now(), slices.Clone(alerts)
	var others []string
	p.until(ctx, t, what+": alerts fire", func() bool {
		names, err := p.firing(ctx)
		for _, name := range names {
			if i := slices.Index(missing, name); i >= 0 {
				missing = slices.Delete(missing, i, i+1)
				shown(t, what+": fires "+name, time.Since(began).Seconds(), "s")
			} else if !slices.Contains(alerts, name) && !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
		return err == nil && len(missing) == 0
	}, &missing)
	if len(others) > 0 {
		t.Logf("meanwhile also fired: %s", strings.Join(others, " "))
	}
}

// awaitEnd waits until none of the alerts fires.
func (p *prometheus) awaitEnd(ctx context.Context, t *testing.T, alerts ...string) {
	t.Helper()
	began := time.Now()
	var left []string
	p.until(ctx, t, "alerts clear", func() bool {
		names, err := p.firing(ctx)
		left = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(alerts, name) })
		return err == nil && len(left) == 0
	}, &left)
	if took := time.Since(began); took > time.Second {
		shown(t, strings.Join(alerts, ", ")+" cleared after", took.Seconds(), "s")
	}
}

// until names what is missing if ok does not hold before ctx ends.
func (p *prometheus) until(ctx context.Context, t *testing.T, what string, ok func() bool, missing *[]string) {
	t.Helper()
	for !ok() {
		if sleep(ctx, 100*time.Millisecond) != nil {
			t.Fatalf("not in time: %s: %s", what, strings.Join(*missing, " "))
		}
	}
}

// firing are the alerts that fire, without their common prefix.
func (p *prometheus) firing(ctx context.Context) (names []string, err error) {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels struct{ Alertname string }
			}
		}
	}
	if err := p.ask(ctx, "/api/v1/alerts", &answer); err != nil {
		return nil, err
	}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, strings.TrimPrefix(a.Labels.Alertname, "Grapevine"))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// query returns the values of the series now.
func (p *prometheus) query(ctx context.Context, expr string) (values []float64, err error) {
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := p.ask(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return nil, err
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

func (p *prometheus) ask(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// checkBoards has every query of the Grafana boards evaluated, with its variables set to all.
func (p *prometheus) checkBoards(ctx context.Context, t *testing.T) {
	t.Helper()
	all := strings.NewReplacer("$__rate_interval", "3m", "$job", ".*", "$instance", ".*", "$model", ".*", "$backend", ".*")
	boards, err := filepath.Glob(deployDir + "grafana/*.json")
	if err != nil {
		t.Fatal(err)
	}
	queries, without := 0, 0
	for _, file := range boards {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var board struct{ Panels []panel }
		if err := json.Unmarshal(text, &board); err != nil {
			t.Fatal(err)
		}
		var empty []string
		for _, panel := range unfold(board.Panels) {
			for _, target := range panel.Targets {
				queries++
				values, err := p.query(ctx, all.Replace(target.Expr))
				if err != nil {
					t.Errorf("%s: %q: %v", file, panel.Title, err)
				} else if len(values) == 0 && !slices.Contains(empty, panel.Title) {
					empty = append(empty, panel.Title)
				}
			}
		}
		without += len(empty)
		t.Logf("%s: panels without data in this fleet: %s", filepath.Base(file), strings.Join(empty, ", "))
	}
	atLeast(t, "queries of the boards that Prometheus evaluates", float64(queries), 100, "")
	atMost(t, "panels without data: of clients, rules, cache events and spans, which this fleet has not", float64(without), 25, "")
}

type panel struct {
	Title   string
	Targets []struct{ Expr string }
	Panels  []panel // of a row that is collapsed
}

func unfold(panels []panel) (all []panel) {
	for _, p := range panels {
		all = append(append(all, p), unfold(p.Panels)...)
	}
	return all
}

// talk is traffic whose prompts are those of few long texts, or new ones if unique. Requests that a fault breaks are not its business.
type talk struct {
	unique atomic.Bool
}

func startTalk(ctx context.Context, t *testing.T, f *fleet.Fleet) *talk {
	t.Helper()
	const clients, texts = 3, 6
	ctx, cancel := context.WithCancel(ctx)
	k := new(talk)
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	var last atomic.Uint64
	for range clients {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
			for sleep(ctx, 50*time.Millisecond) == nil {
				id := last.Add(1)
				if !k.unique.Load() {
					id %= texts
				}
				_ = newConversation(id).send(ctx, client, f.URL(), false)
			}
		})
	}
	return k
}

package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/node"
	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/node/doctor"
)

// The planted cases, through a router and two emulated engines with caches.
func TestPlantedCasesThroughARouter(t *testing.T) {
	t.Parallel()
	for _, p := range doctor.Plants() {
		t.Run(p.Name(), func(t *testing.T) {
			t.Parallel()
			n := start(t)
			for i := range 60 {
				body, err := json.Marshal(p.Request(i))
				if err != nil {
					t.Fatal(err)
				}
				path := "/v1/chat/completions"
				if _, ok := p.Request(i)["prompt"]; ok {
					path = "/v1/completions"
				}
				post(t, "http://"+n.Addr()+path, body)
			}
			var r *doctor.Report
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				var err error
				if r, err = admin.NewClient(n.AdminAddr()).Doctor(t.Context()); err != nil {
					t.Fatal(err)
				}
				// The last requests are observed after their answers.
				if len(r.Applications) == 1 && r.Applications[0].Requests > 0 && r.Applications[0].Samples > 40 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("not sampled within a minute: %+v", r)
				}
			}
			if r.Per != "hour" || !r.Sampling {
				t.Errorf("%+v", r)
			}
			p.Check(t, r)
		})
	}
}

func start(t *testing.T) *node.Node {
	t.Helper()
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.NodeName, cfg.Log = "127.0.0.1:0", "127.0.0.1:0", "test", zerolog.Nop()
	cfg.DrainGrace, cfg.DrainClose, cfg.ProbePath, cfg.DoctorSamples = 0, 0, config.NoProbes, 1000
	for range 2 {
		s, err := engine.NewServer(engine.ServerConfig{
			Config: engine.Config{PrefillRate: 1e6, DecodeStep: time.Millisecond}, Models: []string{"m"}, DefaultOutput: 2, Log: zerolog.Nop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Start("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		cfg.Backends = append(cfg.Backends, config.Backend{URL: "http://" + s.Addr()})
	}
	n, err := node.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return n
}

func post(t *testing.T, url string, body []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s %v", resp.StatusCode, text, err)
	}
}

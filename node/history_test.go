package node

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/history"
	"grapevine.example/raftstore"
)

// TestEveryNodeHasTheFiguresOfTheFleet: requests that one node serves are in the history of the other, and both know who hears whom.
func TestEveryNodeHasTheFiguresOfTheFleet(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, "m")
	nodes := startFleet(t, 2, engine.URL)
	one, two := nodes[0], nodes[1]
	eventually(t, "the other node's figures", func() bool { return one.history.Reporting() == 1 })
	served := func() (sum float32) {
		one.history.Tick(time.Now(), 0, 0)
		for _, v := range one.history.Span(false, time.Time{}).Columns[history.Names[history.Served]] {
			sum += v
		}
		return sum
	}
	if sum := served(); sum != 0 {
		t.Errorf("%v requests per second before the first", sum)
	}
	if status, _, body := chat(t, two, chatBody("m", "hello")); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, "the other node's request", func() bool { return served() > 0 })
	eventually(t, "who hears whom", func() bool {
		m := one.NodeList().LagsMS
		return len(m) == 2 && m[0][0] == nil && m[0][1] != nil && m[1][0] != nil
	})
	stopNode(t, two)
	eventually(t, "the end of the other node's figures", func() bool { return one.history.Reporting() == 0 })
}

func TestHistoryOverTheAdminAPI(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, "m")
	n := startNode(t, testConfig(engine.URL))
	at := time.Now()
	for i := range 13 {
		n.history.Tick(at.Add(time.Duration(i)*history.Fine), 3, -1)
	}
	ask := func(query string, want int) (h admin.History) {
		t.Helper()
		resp, err := http.Get("http://" + n.AdminAddr() + "/history" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != want {
			t.Fatalf("%s: %d, want %d", query, resp.StatusCode, want)
		}
		if want == http.StatusOK {
			if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
				t.Fatal(err)
			}
		}
		return h
	}
	if h := ask("", http.StatusOK); h.Nodes != 1 || h.Reporting != 1 || h.EveryS != 5 || len(h.Columns["in_flight"]) < 13 {
		t.Errorf("%+v", h)
	}
	if h := ask("?coarse=true", http.StatusOK); h.EveryS != 60 || len(h.Columns["in_flight"]) != 1 || h.Columns["in_flight"][0] != 3 {
		t.Errorf("%+v", h)
	}
	ask("?since_ms=yesterday", http.StatusBadRequest)
}

func TestEngineSummary(t *testing.T) {
	t.Parallel()
	a, b := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	n := startNode(t, testConfig(a.URL, b.URL))
	eventually(t, "an agreement", func() bool { return n.backends.Roster().Version > 0 })
	if s := n.engineSummary(); s.Active != 2 || len(s.Attention) != 0 {
		t.Errorf("%+v", s)
	}
	name := n.backends.Roster().List[0].Name
	if _, err := n.SetBackendState(t.Context(), []string{name}, raftstore.Drain, "new driver", false); err != nil {
		t.Fatal(err)
	}
	s := n.engineSummary()
	if s.Active != 1 || s.Draining != 1 || len(s.Attention) != 1 || s.Attention[0].Name != name || s.Attention[0].Reason != "new driver" || s.Attention[0].State != "draining" {
		t.Errorf("%+v", s)
	}
}

func TestDashboardNeedsNoTokenAndHasNoData(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.AdminTokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(cfg.AdminTokenFile, []byte("a-token-for-operators"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, cfg)
	for path, want := range map[string]int{"/ui/": http.StatusOK, "/ui/app.js": http.StatusOK, "/": http.StatusOK, "/history": http.StatusUnauthorized, "/nodes": http.StatusUnauthorized, "/uix": http.StatusUnauthorized} {
		resp, err := http.Get("http://" + n.AdminAddr() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without the token: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

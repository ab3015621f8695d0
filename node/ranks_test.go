package node

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
	"grapevine.example/raftstore"
)

// Each rank has a cache of its own, and an engine that chooses the rank goes by load.
func TestRanksAreBackends(t *testing.T) {
	t.Parallel()
	url := startRanks(t, 4)
	cfg := testConfig()
	cfg.MetricsInterval = 20 * time.Millisecond
	n := startNode(t, cfg)
	if _, err := client(n).AddBackends(t.Context(), []admin.NewBackend{{Name: "gpu", URL: url + "#ranks"}}, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ranks are backends of a quarter of the cache", func() bool {
		list := n.router.View().Backends
		for i := range list {
			if list[i].Name != fmt.Sprint("gpu@", i) || list[i].KVTokens != 1_500_000 {
				return false
			}
		}
		return len(list) == 4
	})
	byRank := talks(t, n)
	whole := talks(t, startNode(t, testConfig(url)))
	t.Logf("cached share of the last turns' prompts: %.3f by rank, %.3f by engine", byRank, whole)
	if byRank < 0.6 || whole > 0.4 {
		t.Errorf("cached share of the last turns' prompts: %.3f by rank, %.3f by engine", byRank, whole)
	}
	for _, name := range []string{"X-Data-Parallel-Rank", "x-data-parallel-rank"} {
		req, err := http.NewRequest("POST", "http://"+n.Addr()+"/v1/chat/completions", strings.NewReader(chatBody("m", "hello")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header[name] = []string{"9"}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("a client's %s reached the engine, which answered %d", name, resp.StatusCode)
		}
	}
}

// talks returns the cached share of the third turns' prompts, two thirds at best.
func talks(t *testing.T, n *Node) float64 {
	t.Helper()
	const conversations, turns = 15, 3 // 15 is no multiple of the ranks, which take idle engines' requests in turn
	cached, prompt := 0, 0
	talk := make([][]message, conversations)
	for i := range turns {
		for c := range talk {
			talk[c] = append(talk[c], message{"user", fmt.Sprintf("%s talk %d of %s, turn %d: %s", n.Addr(), c, t.Name(), i, strings.Repeat("and so on ", 300))})
			_, reply, found, of := turn(t, n, false, talk[c])
			talk[c] = append(talk[c], message{"assistant", reply})
			if i == turns-1 {
				cached, prompt = cached+found, prompt+of
			}
		}
	}
	return float64(cached) / float64(prompt)
}

func TestRanksOfASilentEngine(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig())
	fake := newFakeEngine(t, "m") // has no metrics
	_, err := client(n).AddBackends(t.Context(), []admin.NewBackend{{URL: fake.URL + "#ranks"}}, false)
	if err == nil || !strings.Contains(err.Error(), "#ranks=N") {
		t.Errorf("%v", err)
	}
	if _, err = client(n).AddBackends(t.Context(), []admin.NewBackend{{URL: fake.URL + "#ranks=2"}}, false); err != nil {
		t.Error(err)
	}
	host := strings.TrimPrefix(fake.URL, "http://")
	_, err = client(n).AddBackends(t.Context(), []admin.NewBackend{{URL: fake.URL + "/#rank=01"}}, false)
	if err == nil || !strings.Contains(err.Error(), host+"@1") {
		t.Errorf("a rank for the second time: %v", err)
	}
	eventually(t, "both ranks", func() bool { return names(n.router.View()) == host+"@0 "+host+"@1" })
}

func names(v *policy.View) string {
	var list []string
	for i := range v.Backends {
		list = append(list, v.Backends[i].Name)
	}
	return strings.Join(list, " ")
}

func TestConfiguredRanks(t *testing.T) {
	for url, want := range map[string]string{
		"http://h:1#ranks=2": "h:1@0 http://h:1#rank=0, h:1@1 http://h:1#rank=1", "http://h:1/v1#rank=3": "h:1@3 http://h:1#rank=3",
		"http://h:1": "h:1 http://h:1", "http://h:1#ranks": "", "http://h:1#ranks=0": "", "http://h:1#ranks=1025": "", "http://h:1#rank=x": "", "http://h:1#x": "",
	} {
		cfg := testConfig(url)
		err := cfg.Validate("", nil)
		var got []string
		for _, b := range cfg.Backends {
			if _, err := raftstore.NormalURL(b.URL); err != nil {
				t.Error(err)
			}
			got = append(got, b.Name+" "+b.URL)
		}
		if strings.Join(got, ", ") != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "#ranks=N") {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
	for events, want := range map[string]string{"off": "", "tcp://h:5557": "#rank=K"} {
		cfg := testConfig("http://h:1#ranks=2")
		cfg.Backends[0].Events = events
		if err := cfg.Validate("", nil); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("events %s for two ranks: %v", events, err)
		}
	}
	for entry, want := range map[string]bool{"dns:h:1#ranks=2": true, "srv:_e._tcp.h#ranks=2": true, "file:/a#b": true, "dns:h:1#ranks": false, "dns:h:1#2": false} {
		if s, err := config.ParseSource(entry); (err == nil) != want || want && s.Entry != entry {
			t.Errorf("%s: %+v, %v", entry, s, err)
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"grapevine.example/node/admin"
)

func slowEngine(t *testing.T) (url string, entered <-chan struct{}, let func()) {
	t.Helper()
	in, hold := make(chan struct{}, 1), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/models") {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m"}]}`)
			return
		}
		if r.Method != http.MethodPost {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		in <- struct{}{}
		<-hold
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[]}`)
	}))
	let = sync.OnceFunc(func() { close(hold) })
	t.Cleanup(func() { let(); s.Close() })
	return s.URL, in, let
}

func TestOperateByCommands(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("a-token-for-operators\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	url, entered, let := slowEngine(t)
	p := serve(t, "--node-name", "one", "--secret", fleetSecret, "--data-dir", data, "--admin-token-file", token, "--drain-grace", "0s")
	do := func(args ...string) (got result) {
		t.Helper()
		eventually(t, "a leader that has the time", func() bool { // an election may take more than 2 s on a busy machine
			got = grapevine(t, "", append(args, "--admin", p.admin, "--admin-token-file", token)...)
			return got.code == 0 || !strings.Contains(got.err, "no leader") && !strings.Contains(got.err, "outcome unknown")
		})
		return got
	}
	if got := grapevine(t, "", "backends", "--admin", p.admin); got.code != exitFailed || !strings.Contains(got.err, "token") {
		t.Errorf("without the token: %+v", got)
	}
	eventually(t, "a leader", func() bool {
		got := do("raft", "status")
		return got.code == 0 && strings.Contains(got.out, "one (") && strings.Contains(got.out, "is leader")
	})
	if got := do("backends", "add", "http://127.0.0.3:1"); got.code != exitFailed || !strings.Contains(got.err, "no engine answers") || !strings.Contains(got.err, "--force") {
		t.Errorf("%+v", got)
	}
	if got := do("backends", "add", "--name", "gpu1", url, "http://h"); got.code != exitUsage {
		t.Errorf("one name for two: %+v", got)
	}
	if got := do("backends", "add", "--name", "gpu1", url); got.code != 0 && !strings.Contains(got.err, "exists already") { // by an earlier attempt
		t.Fatalf("%+v", got)
	}
	if got := do("backends", "add", "--name", "gpu2", url); got.code != exitFailed || !strings.Contains(got.err, "gpu1") {
		t.Errorf("the same engine again: %+v", got)
	}
	var list admin.BackendList
	if got := do("backends", "list", "--consistent", "--json"); got.code != 0 || json.Unmarshal([]byte(got.out), &list) != nil || len(list.Backends) != 1 ||
		list.Backends[0].Name != "gpu1" || !list.Backends[0].Agreed {
		t.Errorf("%+v", got)
	}

	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+p.data+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"slowly"}]}`))
		if err != nil {
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	<-entered
	drained := make(chan result, 1)
	go func() { drained <- do("backends", "drain", "gpu1", "--force", "--reason", "new disk", "--wait") }()
	eventually(t, "the drain is seen", func() bool {
		got := do("backends")
		return strings.Contains(got.out, "draining") && strings.Contains(got.out, "new disk")
	})
	select {
	case got := <-drained:
		t.Errorf("the drain did not wait for the request: %+v", got)
	case <-time.After(time.Second):
	}
	let()
	if status := <-answered; status != http.StatusOK {
		t.Errorf("the request that ran: %d", status)
	}
	if got := <-drained; got.code != 0 || !strings.Contains(got.out, "drained gpu1") || !strings.Contains(got.err, "1 requests still run") {
		t.Errorf("%+v", got)
	}
	if got := do("backends", "resume", "gpu1"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := do("backends", "resume", "gpu1", "--json"); got.code != 0 || !strings.Contains(got.out, `"changed": false`) {
		t.Errorf("%+v", got)
	}

	rules := filepath.Join(dir, "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("rules:\n  - {model: a, strategy: random}\n  - {strategy: fastest}\n")
	if got := grapevine(t, "", "rules", "check", rules); got.code != exitFailed || !strings.Contains(got.err, rules+":3: rules[1].strategy") {
		t.Errorf("check: %+v", got)
	}
	if got := do("rules", "apply", rules); got.code != exitFailed || !strings.Contains(got.err, "line 3: rules[1].strategy") {
		t.Errorf("%+v", got)
	}
	write("rules:\n  - {model: a, strategy: random}\n")
	if got := do("rules", "apply", "--dry-run", rules); got.code != 0 || !strings.Contains(got.out, "+  - {model: a, strategy: random}") || !strings.Contains(got.out, "nothing was changed") {
		t.Errorf("%+v", got)
	}
	if got := do("rules", "apply", rules); got.code != 0 || !strings.Contains(got.out, "applied: version") {
		t.Errorf("%+v", got)
	}
	if got := do("rules"); got.code != 0 || !strings.Contains(got.out, "Rules of the fleet") || !strings.Contains(got.out, "random") {
		t.Errorf("%+v", got)
	}
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"add", "name=canary,share=5%,to=b", "--at", "0", "--dry-run"}, "nothing was changed"},
		{[]string{"add", "name=canary,share=5%,to=b", "--at", "0"}, "+  - {name: canary, share: 5%, to: b}"},
		{[]string{"remove", "1"}, "-  - {model: a, strategy: random}"},
		{[]string{"add", "strategy=session"}, "+  - {strategy: session}"},
		{[]string{"remove", "canary"}, "-  - {name: canary, share: 5%, to: b}"},
		{[]string{"add", "name=x,to=b"}, "+  - {name: x, to: b}"},
		{[]string{"show", "--text"}, "rules:\n  - {strategy: session}\n  - {name: x, to: b}\n"},
	} {
		if got := do(append([]string{"rules"}, step.args...)...); got.code != 0 || !strings.Contains(got.out, step.want) {
			t.Errorf("rules %v: %+v", step.args, got)
		}
	}
	for _, wrong := range []struct {
		args []string
		want string
	}{
		{[]string{"remove", "canary"}, `no rule is named "canary"`},
		{[]string{"add", "strategy=fastest"}, "unknown strategy"},
		{[]string{"add", "name=x,to=a"}, "give each rule its own"},
	} {
		if got := do(append([]string{"rules"}, wrong.args...)...); got.code != exitFailed || !strings.Contains(got.err, wrong.want) {
			t.Errorf("rules %v: %+v", wrong.args, got)
		}
	}
	if got := do("prefixes", "hot", "--disable"); got.code != 0 || !strings.Contains(got.out, "off") {
		t.Errorf("%+v", got)
	}
	if got := do("prefixes", "hot"); got.code != 0 || !strings.Contains(got.out, "is off") || !strings.Contains(got.out, "No prefix is hot") {
		t.Errorf("%+v", got)
	}
	if got := do("backends", "remove", "gpu1", "gpu9"); got.code != exitFailed || !strings.Contains(got.err, "gpu9") {
		t.Errorf("%+v", got)
	}
	if got := do("backends", "remove", "--force", "gpu1"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	var raft admin.RaftStatus
	if got := do("raft", "status", "--json"); got.code != 0 || json.Unmarshal([]byte(got.out), &raft) != nil {
		t.Fatalf("%+v", got)
	}
	server := raft.ID + "=127.0.0.1:7946"
	if got := grapevine(t, "", "raft", "recover", "--data-dir", data, "--server", server); got.code != exitFailed {
		t.Errorf("recovered under a running router: %+v", got)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d\n%s", code, p.log.String())
	}
	var held struct {
		ID        string `json:"id"`
		LastIndex uint64 `json:"last_index"`
	}
	if got := grapevine(t, "", "raft", "inspect", "--data-dir", data, "--json"); got.code != 0 || json.Unmarshal([]byte(got.out), &held) != nil || held.ID != raft.ID || held.LastIndex < raft.LastIndex {
		t.Errorf("%+v", got)
	}
	if got := grapevine(t, "", "raft", "inspect", "--data-dir", data); got.code != 0 || !strings.Contains(got.out, "id "+raft.ID+", group "+raft.Group) || !strings.Contains(got.out, "VOTES") {
		t.Errorf("%+v", got)
	}
	if got := grapevine(t, "", "raft", "inspect", "--data-dir", dir); got.code != exitFailed || !strings.Contains(got.err, "raft.db: no such file") {
		t.Errorf("%+v", got)
	}
	peers := filepath.Join(dir, "peers.json")
	if err := os.WriteFile(peers, []byte(`[{"id":"`+raft.ID+`","address":"127.0.0.1:7946","voter":true}] []`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]string{
		{}, {"--server", "x"}, {"--server", server, "--peers", token}, {"--peers", peers},
		{"--server", raft.ID + "=127.0.0.1"}, {"--server", raft.ID + "=:7946"}, {"--server", raft.ID + "=0.0.0.0:7946"}, {"--server", raft.ID + "=127.0.0.1:0"},
	} {
		if got := grapevine(t, "", append([]string{"raft", "recover", "--data-dir", data}, wrong...)...); got.code != exitUsage {
			t.Errorf("%v: %+v", wrong, got)
		}
	}
	if got := grapevine(t, "", "raft", "recover", "--data-dir", data, "--server", server); got.code != 0 || !strings.Contains(got.out, "a group of 1, of which 1 vote") {
		t.Errorf("%+v", got)
	}
	// --server names voters; only --peers can name non-voters.
	if got := grapevine(t, "", "raft", "recover", "--data-dir", data, "--server", server, "--server", "other=127.0.0.2:7946"); got.code != 0 || !strings.Contains(got.out, "a group of 2, of which 2 vote") {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(peers, []byte(`[{"id":"`+raft.ID+`","address":"127.0.0.1:7946","voter":true},{"id":"other","address":"127.0.0.2:7946","voter":false}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := grapevine(t, "", "raft", "recover", "--data-dir", data, "--peers", peers); got.code != 0 || !strings.Contains(got.out, "a group of 2, of which 1 vote") || !strings.Contains(got.out, "on the others") {
		t.Errorf("%+v", got)
	}
	if got := grapevine(t, "", "raft", "recover", "--help"); !strings.Contains(got.out, "Every --server becomes a voter") {
		t.Errorf("%+v", got)
	}
}

func TestAwaitIdle(t *testing.T) {
	backend := func(drained bool, active int) string {
		text, err := json.Marshal(admin.BackendList{Backends: []admin.BackendStatus{{Name: "a", Drained: drained, FleetActive: int64(active)}}})
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	for what, tc := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, over func())
		want   string
	}{
		"busy":    {func(w http.ResponseWriter, _ *http.Request, _ func()) { _, _ = io.WriteString(w, backend(true, 3)) }, "3 requests still run"},
		"resumed": {func(w http.ResponseWriter, _ *http.Request, _ func()) { _, _ = io.WriteString(w, backend(false, 0)) }, "an operator has resumed it"},
		"silent": {func(_ http.ResponseWriter, r *http.Request, over func()) {
			over()
			<-r.Context().Done()
		}, "did not report the running requests"},
		"fails": {func(w http.ResponseWriter, _ *http.Request, _ func()) { w.WriteHeader(http.StatusBadGateway) }, "the wait has ended: admin API"},
	} {
		ctx, over := context.WithCancel(t.Context())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tc.answer(w, r, over) }))
		err := awaitIdle(ctx, admin.NewClient(s.URL), []string{"a"}, func(string) { over() }) // end the wait once something is known
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", what, err)
		}
		over()
		s.Close()
	}
}

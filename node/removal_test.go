package node

import (
	"net/http"
	"strings"
	"testing"

	"grapevine.example/node/admin"
	"grapevine.example/raftstore"
)

func TestRequestsOutliveTheirBackend(t *testing.T) {
	leakCheck(t)
	old, next := newFakeEngine(t, "m"), newFakeEngine(t, "m")
	n := startNode(t, testConfig())
	eventually(t, "a leader", func() bool {
		st, err := n.Raft()
		return err == nil && st.Role == "leader"
	})
	c := client(n)
	add := func(name, url string) {
		t.Helper()
		if _, err := c.AddBackends(t.Context(), []admin.NewBackend{{Name: name, URL: url}}, false); err != nil {
			t.Fatal(err)
		}
	}
	hold := func() (ended chan int) {
		ended = make(chan int, 1)
		go func() {
			resp, err := http.Post("http://"+n.Addr()+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("m", "hold on")))
			if err != nil {
				ended <- 0
				return
			}
			resp.Body.Close()
			ended <- resp.StatusCode
		}()
		return ended
	}
	for what, change := range map[string]func() error{
		"removed": func() error { _, err := c.Forced().RemoveBackends(t.Context(), []string{"gpu"}); return err },
		"moved": func() error {
			_, err := n.UpdateBackend(t.Context(), raftstore.UpdateBackend{Name: "gpu", URL: new(next.alias())}, false)
			return err
		},
	} {
		add("gpu", old.URL)
		release := old.holdAnswers()
		ended := hold()
		<-old.entered
		if err := change(); err != nil {
			t.Fatal(err)
		}
		add("next", next.URL)
		select {
		case status := <-ended:
			t.Errorf("%s: the request ended with %d at once", what, status)
		default:
		}
		release()
		if status := <-ended; status != http.StatusOK {
			t.Errorf("%s: the request ended with %d", what, status)
		}
		eventually(t, "nothing is left", func() bool {
			for _, b := range n.BackendList().Backends {
				if b.Active != 0 || b.PrefillTokens != 0 {
					return false
				}
			}
			return true
		})
		var names []string
		for _, b := range n.BackendList().Backends {
			names = append(names, b.Name)
		}
		if _, err := c.Forced().RemoveBackends(t.Context(), names); err != nil {
			t.Fatal(err)
		}
	}
}

package backends

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"grapevine.example/node/config"
	"grapevine.example/proxy/engine/events"
)

func TestParseModels(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
		bad  bool
	}{
		{`{"object":"list","data":[{"id":"b"},{"id":"a"},{"id":"b"},{"id":""}]}`, []string{"a", "b"}, false},
		{`{"data":[]}`, nil, false},
		{`{}`, nil, false},
		{`not json`, nil, true},
		{`{"data":"x"}`, nil, true},
		{`{"data":[` + strings.Repeat(`{"id":"x"},`, maxModelNames) + `{"id":"x"}]}`, nil, true},
	} {
		got, err := parseModels([]byte(tc.text))
		if (err != nil) != tc.bad || !slices.Equal(idsOf(got), tc.want) {
			t.Errorf("%.40s: %v %v", tc.text, got, err)
		}
	}
}

// A rank's stream is the one at its place: a node of several counts its ranks from 0, and names them by their numbers in the engine.
func TestEventSourcesOfARank(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kv_event_sources" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, `{"9":{"endpoint":"tcp://*:5566"},"8":{"endpoint":"tcp://*:5565"}}`)
	}))
	defer s.Close()
	d, _ := newDirectory(t, config.Backend{URL: s.URL}, config.Backend{URL: s.URL + "#rank=0"}, config.Backend{URL: s.URL + "#rank=1"}, config.Backend{URL: s.URL + "#rank=2"})
	for _, e := range d.Roster().List {
		want := map[int]string{-1: "[127.0.0.1:5565 127.0.0.1:5566]", 0: "[127.0.0.1:5565]", 1: "[127.0.0.1:5566]", 2: "[]"}[e.rank]
		sources, err := e.EventSources(t.Context())
		got := []string{}
		for _, s := range sources {
			got = append(got, s.Endpoint)
		}
		if fmt.Sprint(got) != want || errors.Is(err, events.ErrNone) != (e.rank == 2) {
			t.Errorf("%s: streams %v, want %s: %v", e.Name, got, want, err)
		}
	}
}

func TestDiscoverySendsTheKey(t *testing.T) {
	large := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sesame" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if large {
			_, _ = w.Write(make([]byte, maxAnswer+1))
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	}))
	defer s.Close()
	own := []config.Backend{{URL: s.URL, Name: "keyed", APIKey: "sesame"}, {URL: strings.Replace(s.URL, "127.0.0.1", "localhost", 1), Name: "keyless"}}
	d, _ := newDirectory(t, own...)
	keyed, keyless := d.Roster().List[0], d.Roster().List[1]
	if got, err := keyed.askModels(t.Context()); err != nil || !slices.Equal(idsOf(got), []string{"m"}) {
		t.Errorf("with the key: %v %v", got, err)
	}
	if _, err := keyless.askModels(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without the key: %v", err)
	}
	large = true
	if _, err := keyed.askModels(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than 4MiB") {
		t.Errorf("a large answer: %v", err)
	}
}

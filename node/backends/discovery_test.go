package backends

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"grapevine/node/config"
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

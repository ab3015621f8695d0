package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParseSource(t *testing.T) {
	for entry, want := range map[string]bool{
		"file:/etc/backends": true, "dns:engines.internal:8000": true, "srv:_engine._tcp.internal": true,
		"": false, "file:": false, "dns:engines": false, "dns:engines:0": false, "dns::80": false, "dns:a/b:80": false, "srv:": false,
		"srv:name:80": false, "http://x": false, "engines:8000": false,
	} {
		if _, err := ParseSource(entry); (err == nil) != want {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

func TestParseBackends(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
		errs       []string
	}{
		{"lines", "# engines\n\nhttp://a:1\n  http://b:2/v1,weight=2,models=x|y \n", []string{"a:1", "b:2"}, nil},
		{"yaml", "# engines\n- http://a:1\n- url: http://b:2\n  weight: 3\n", []string{"a:1", "b:2"}, nil},
		{"yaml under its key", "backends:\n  - http://a:1\n", []string{"a:1"}, nil},
		{"every mistake", "http://a:1\nftp://b\nhttp://a:1\nhttp://c:1,api_key=k\n", nil, []string{"f:2: ", "f:3: a:1 is in line 1", "f:4: c:1: api_key"}},
		{"events", "http://a:1,events=off\n", nil, []string{"f:1: a:1: api_key, api_key_file, ca_file and events are each node's own"}},
		{"unknown key", "- url: http://a:1\n  wait: 3\n", nil, []string{"f:2: ", "wait"}},
		{"not a list", "engines: 3\n", nil, []string{"f:1: not a list"}},
		{"no yaml", "- [\n", nil, []string{"f:1: "}},
		{"two documents", "- http://a:1\n---\n- http://b:2\n", nil, []string{"f:2: more than one YAML document"}},
		{"no document", "...\n", nil, []string{"f:"}},
		{"a directive alone", "%YAML 1.2\n", nil, []string{"f:"}},
		{"empty", "\n# none\n", nil, nil},
		{"empty behind a byte order mark", "\ufeff# none\n", nil, nil},
	} {
		list, err := ParseBackends("f", []byte(c.text))
		if (err != nil) != (c.errs != nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, part := range c.errs {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q lacks %q", c.name, err, part)
			}
		}
		var names []string
		for _, b := range list {
			names = append(names, b.Name)
		}
		if err == nil && !slices.Equal(names, c.want) {
			t.Errorf("%s: %v", c.name, names)
		}
	}
}

func FuzzParseBackends(f *testing.F) {
	f.Add([]byte("http://a:1\n"))
	f.Add([]byte("- url: http://a:1\n  models: [x]\n"))
	f.Add([]byte("backends: [http://a:1, &x http://b:2, *x]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseBackends("f", text)
		if err != nil {
			return
		}
		seen := make(map[string]bool)
		for _, b := range list {
			if b.Name == "" || b.URL == "" || seen[b.Name] {
				t.Fatalf("%+v", list)
			}
			seen[b.Name] = true
		}
	})
}

package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"grapevine.example/proxy/policy"
)

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	if err := c.Validate("", nil); err != nil {
		t.Fatal(err)
	}
	if c.Listen != ":8080" || c.UpstreamIdle != 4*time.Second || c.MaxBody != 32<<20 || c.Strategy != policy.Prefix {
		t.Fatalf("defaults were not read from the table: %+v", c)
	}
}

func TestSettingsAgree(t *testing.T) {
	singular := map[string]string{"backends": "backend", "founders": "founder", "rules": "rule", "weights": "weight"}
	for _, s := range Settings() {
		flag := strings.ReplaceAll(s.Key, "_", "-")
		if one, ok := singular[s.Key]; ok {
			flag = one
		}
		if s.Flag != flag {
			t.Errorf("%s: flag %q, want %q", s.Key, s.Flag, flag)
		}
		if want := "GRAPEVINE_" + strings.ToUpper(s.Key); s.Env != want {
			t.Errorf("%s: variable %q, want %q", s.Key, s.Env, want)
		}
		if s.Help == "" || s.Group == "" {
			t.Errorf("%s: no help or no group", s.Key)
		}
	}
	// All fields but Log, LogSwitch, Version, Inherited and Stdout are settings.
	if got, want := len(Settings()), reflect.TypeFor[Config]().NumField()-5; got != want {
		t.Errorf("%d settings for %d fields", got, want)
	}
}

func TestParse(t *testing.T) {
	c, lines, err := Parse("f.yaml", []byte(`
# A comment.
listen: ":9000"
first_byte_timeout: 90s
models_interval: 0
max_body: 1GiB
pprof: true
weights: {prefix: 2, load: 1}
backends:
  - http://a:8000/v1/
  - url: https://b
    name: bee
    models: [llama, qwen]
    weight: 2
    kv_tokens: 1000
rules:
  - {path: /v1/embeddings, strategy: least-request}
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate("f.yaml", lines); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen, want.FirstByteTimeout, want.MaxBody, want.Pprof = ":9000", 90*time.Second, 1<<30, true
	want.ModelsInterval = 0
	want.Weights = map[string]float64{"prefix": 2, "load": 1}
	want.Backends = []Backend{
		{URL: "http://a:8000", Name: "a:8000", Weight: 1},
		{URL: "https://b", Name: "bee", Models: []string{"llama", "qwen"}, Weight: 2, KVTokens: 1000},
	}
	want.Rules = []Rule{{Path: "/v1/embeddings", Strategy: "least-request"}}
	if !reflect.DeepEqual(c, want) {
		t.Fatalf("got  %+v\nwant %+v", c, want)
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "listen: ':1'\nfrist_byte_timeout: 3s\n", "f.yaml:2: frist_byte_timeout: unknown key: did you mean first_byte_timeout?"},
		{"flag spelling", "max-body: 3\n", "f.yaml:1: max-body: unknown key: did you mean max_body?"},
		{"far from any key", "kubernetes: 3\n", "f.yaml:1: kubernetes: unknown key: known keys are listen, admin, "},
		{"nested unknown key", "backends:\n  - url: http://a\n    modles: [x]\n", "f.yaml:3: backends[0].modles: unknown key: did you mean models?"},
		{"given twice", "pprof: true\n\npprof: false\n", "f.yaml:3: pprof: given twice, first in line 1: keep one"},
		{"bad duration", "\n\nread_timeout: soon\n", `f.yaml:3: read_timeout: "soon" is not a duration: write 30s, 5m or 1h30m`},
		{"duration without unit", "read_timeout: 30\n", `f.yaml:1: read_timeout: "30" is not a duration: write 30s`},
		{"bad size", "max_body: 3 furlongs\n", `f.yaml:1: max_body: "3 furlongs" is not a size in bytes: write 65536`},
		{"bad boolean", "pprof: perhaps\n", `f.yaml:1: pprof: "perhaps" is not a boolean: write true or false`},
		{"no value", "listen:\n", "f.yaml:1: listen: has no value: write"},
		{"not a list", "backends: http://a\n", "f.yaml:1: backends: not a list: write a list of URLs"},
		{"bad backend", "backends: [ftp://a]\n", `f.yaml:1: backends[0]: url "ftp://a" is not one of an engine: write http://host:port`},
		{"rule without strategy", "rules:\n  - path: /x\n", "f.yaml:2: rules[0]: names no strategy, to, pool or session: add one, as a strategy of [prefix prefix-hash least-request session round-robin random weighted]"},
		{"not a mapping", "- a\n- b\n", "f.yaml:1: not a mapping: write KEY: VALUE lines"},
		{"two documents", "pprof: true\n---\npprof: false\n", "f.yaml:2: more than one YAML document: keep the first"},
		{"not YAML", "a: [\n", "f.yaml:1: did not find expected node content"},
		{"strategy of other routers", "strategy: kv\n", `f.yaml:1: strategy: "kv" is unknown: prefix follows the cache events of engines that publish them, see the setting events; known are prefix, `},
		{"semantics", "pprof: true\nstrategy: fastest\n", `f.yaml:2: strategy: "fastest" is unknown: known are prefix, `},
		{"same name", "backends:\n  - http://a:1\n  - {url: 'http://b:1', name: 'a:1'}\n", "f.yaml:1: backends: two backends are called a:1"},
		{"same engine", "backends:\n  - http://a:80\n  - {url: 'http://A/v1', name: b}\n", "f.yaml:1: backends: a:80 and b are one engine"},
		{"long name of a model", "backends: [{url: 'http://a:1', models: [" + strings.Repeat("m", 129) + "]}]\n", "f.yaml:1: backends: models of a:1: [0]: 129 bytes, at most 128 are allowed"},
		{"many models", "backends: [{url: 'http://a:1', models: [m" + strings.Repeat(", m", 64) + "]}]\n", "f.yaml:1: backends: models of a:1: 65 given, at most 64 are allowed"},
		{"long name", "backends: [{url: 'http://a:1', name: " + strings.Repeat("n", 129) + "}]\n", "f.yaml:1: backends: name: 129 bytes"},
		{"short secret", "secret: hunter2\n", "f.yaml:1: secret: is shorter than 16 bytes: generate one with: openssl rand -hex 32"},
		{"half of TLS", "tls_cert: x\n", "f.yaml:1: tls_cert: tls_cert and tls_key belong together: give both or neither"},
		{"zero timeout", "idle_timeout: 0s\n", "f.yaml:1: idle_timeout: 0s is too short"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, lines, err := Parse("f.yaml", []byte(tc.text))
			if err == nil {
				err = c.Validate("f.yaml", lines)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
			var ce *Error
			if !errors.As(err, &ce) {
				t.Fatalf("%T is no Error", err)
			}
		})
	}
}

func TestParseReportsEveryMistake(t *testing.T) {
	_, _, err := Parse("f.yaml", []byte("listne: x\nread_timeout: y\nbackends: [{url: 'http://a', wieght: 1}]\n"))
	for _, want := range []string{"f.yaml:1:", "f.yaml:2:", "f.yaml:3:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s missing in: %v", want, err)
		}
	}
}

func TestParseEmptyIsDefault(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "{}\n"} {
		c, _, err := Parse("f.yaml", []byte(text))
		if err != nil || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(path, []byte("node_name: one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, lines, err := Load(path)
	if err != nil || c.NodeName != "one" || lines["node_name"] != 1 {
		t.Fatalf("%+v %v %v", c, lines, err)
	}
	if _, _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("missing file: %v", err)
	}
	if err := os.WriteFile(path, make([]byte, maxConfigFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), "larger than 4MiB") {
		t.Fatalf("oversize file: %v", err)
	}
}

func TestTextFormsEqualYAML(t *testing.T) {
	var b Backend
	if err := b.UnmarshalText([]byte("http://h:8000/base/v1,name=n,models=a|b,weight=2,kv_tokens=5,api_key=k")); err != nil {
		t.Fatal(err)
	}
	c, _, err := Parse("", []byte("backends: [{url: 'http://h:8000/base/v1', name: n, models: [a, b], weight: 2, kv_tokens: 5, api_key: k}]"))
	if err != nil || !reflect.DeepEqual(b, c.Backends[0]) {
		t.Fatalf("%+v != %+v (%v)", b, c.Backends, err)
	}
	if addr, host, base, tls := b.Address(); addr != "h:8000" || host != "h:8000" || base != "/base" || tls {
		t.Fatal(addr, host, base, tls)
	}
	var r Rule
	if err := r.UnmarshalText([]byte("model=m,path=/p,header=x-a:b,strategy=random")); err != nil {
		t.Fatal(err)
	}
	c, _, err = Parse("", []byte("rules: [{model: m, path: /p, header: x-a, value: b, strategy: random}]"))
	if err != nil || !reflect.DeepEqual(r, c.Rules[0]) {
		t.Fatalf("%+v != %+v (%v)", r, c.Rules, err)
	}
}

func TestBackendTextErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a:8000":                  "write http://host:port",
		"":                        "write http://host:port",
		"http://":                 "write http://host:port",
		"http://u:p@h":            "must not hold a user",
		"http://h?x=1":            "must not hold a user, a query",
		"http://h,weight=x":       `weight "x" is not a number`,
		"http://h,weight=-1":      "weight -1 is not a number from 0 up",
		"http://h,weight=NaN":     "weight NaN is not a number",
		"http://h,models=a||b":    "models holds an empty name",
		"http://h:99999":          "port 99999 is not from 1 to 65535",
		"http://h,colour=red":     `unknown attribute "colour"`,
		"http://h,name=a b":       "visible ASCII",
		"http://h,name=\x00":      "visible ASCII",
		"http://h,api_key=a\nb":   "no header may hold",
		"http://h,ca_file=/x.pem": "ca_file without https",
	} {
		var b Backend
		if err := b.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestBackendAddress(t *testing.T) {
	for url, want := range map[string]string{
		"http://h": "h:80", "https://h": "h:443", "http://[::1]:8000": "[::1]:8000", "https://[fe80::1]": "[fe80::1]:443",
	} {
		b := Backend{URL: url}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		if addr, _, _, tls := b.Address(); addr != want || tls != strings.HasPrefix(url, "https") {
			t.Errorf("%s: %s %v", url, addr, tls)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1": 1, "64KiB": 64 << 10, "64 MiB": 64 << 20, "1.5GiB": 3 << 29, "2gb": 2e9, "7B": 7, "10MB": 1e7,
	} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q: %d %v, want %d", text, b, err, want)
			continue
		}
		var again Bytes
		if err := again.UnmarshalText([]byte(b.String())); err != nil || again != b {
			t.Errorf("%q prints as %q, which reads as %d (%v)", text, b, again, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5", "x", "1TiB", "NaN", "Inf", "1e300GiB", "KiB"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read as %d", text, b)
		}
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	c := Config{SecretFile: path}
	if _, err := c.HashSecret(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.HashSecret(); err == nil || !strings.Contains(err.Error(), "want 16 to 4096 bytes, got 5") {
		t.Fatalf("short: %v", err)
	}
	if err := os.WriteFile(path, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := c.HashSecret(); err != nil || string(key) != "0123456789abcdef" {
		t.Fatalf("%q %v", key, err)
	}
}

package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"grapevine.example/node/config"
)

type sample struct{ text, yaml string }

var samples = map[string]sample{
	"backends": {
		"http://a:8000 https://b,name=n,models=x|y,weight=2,kv_tokens=5,api_key=k http://c,api_key_file=/f",
		"[http://a:8000, {url: https://b, name: n, models: [x, y], weight: 2, kv_tokens: 5, api_key: k}, {url: http://c, api_key_file: /f}]",
	},
	"rules": {
		"strategy=session,model=m* strategy=random,path=/p,header=x-a:b",
		"[{strategy: session, model: m*}, {strategy: random, path: /p, header: x-a, value: b}]",
	},
	"join":          {"10.0.0.1:7946 dns:nodes.example:7946", "[10.0.0.1:7946, 'dns:nodes.example:7946']"},
	"founders":      {"10.0.0.1:7946 r2:7946", "[10.0.0.1:7946, r2:7946]"},
	"backends_from": {"file:/etc/gpus dns:gpus.example:8000", "['file:/etc/gpus', 'dns:gpus.example:8000']"},
	"pass_paths":    {"/classify /v1/files", "[/classify, /v1/files]"},
	"weights":       {"prefix=3,load=0.5", "{prefix: 3, load: 0.5}"},
}

var samplesByKind = map[string]sample{
	"text": {"some:text", `"some:text"`}, "duration": {"1m30s", "1m30s"}, "size in bytes": {"3MiB", "3MiB"},
	"boolean": {"true", "true"}, "whole number": {"7", "7"}, "number": {"0.125", "0.125"},
}

func TestEverySettingThreeWays(t *testing.T) {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GRAPEVINE_") {
			os.Unsetenv(name)
			t.Cleanup(func() { os.Setenv(name, value) })
		}
	}
	for _, s := range config.Settings() {
		t.Run(s.Key, func(t *testing.T) {
			sample, ok := samples[s.Key]
			if !ok {
				if sample, ok = samplesByKind[s.Kind]; !ok {
					t.Fatalf("no sample of a %s", s.Kind)
				}
			}
			file, _, err := config.Parse("f.yaml", []byte(s.Key+": "+sample.yaml+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			if reflect.DeepEqual(file, config.Default()) {
				t.Fatal("the sample is the default, and shows nothing")
			}
			args := []string{"serve", "--" + s.Flag, sample.text}
			if s.Kind == "boolean" {
				args = []string{"serve", "--" + s.Flag}
			}
			if flag := parseServe(t, args...); !reflect.DeepEqual(flag, file) {
				t.Errorf("by flag %+v\nin the file %+v", flag, file)
			}
			t.Setenv(s.Env, sample.text)
			if variable := parseServe(t, "serve"); !reflect.DeepEqual(variable, file) {
				t.Errorf("by variable %+v\nin the file %+v", variable, file)
			}
		})
	}
}

func parseServe(t *testing.T, args ...string) config.Config {
	t.Helper()
	var c cli
	call, err := program(&streams{}).Parse(&c, args)
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := c.Serve.configuration(call)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

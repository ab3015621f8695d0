package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grapevine.example/node/admin"
	"grapevine.example/node/config"
)

func TestExampleFleet(t *testing.T) {
	dir := t.TempDir()
	key, _ := admin.NewGossipKey()
	variables := map[string]bool{"GOMEMLIMIT": true} // Go's own
	for _, s := range config.Settings() {
		variables[s.Env] = true
	}
	for name, text := range map[string]string{"secret": fleetSecret, "gossip.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../deploy/example/grapevine.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "grapevine.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/var/lib/grapevine", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	hosts, err := filepath.Glob("../../deploy/example/router-*/*.conf")
	if err != nil || len(hosts) != 3 {
		t.Fatalf("%v %v", hosts, err)
	}
	for _, host := range hosts {
		scraped := false
		cmd := command(t, "serve", "--check-config", "--config", file)
		for _, dropIn := range []string{host, "../../deploy/example/20-resources.conf"} {
			text, err := os.ReadFile(dropIn)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if setting, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment="); ok {
					cmd.Env = append(cmd.Env, setting)
					scraped = scraped || strings.HasPrefix(setting, "GRAPEVINE_METRICS_LISTEN=10.0.0.1")
					if name, _, _ := strings.Cut(setting, "="); !variables[name] {
						t.Errorf("%s: nothing reads %s", dropIn, name)
					}
				}
			}
		}
		if !scraped {
			t.Errorf("%s: no collector on another machine reaches its metrics", host)
		}
		if got := finish(t, cmd, ""); got.code != 0 || got.out != "configuration is valid: 4 backends, strategy prefix\n" {
			t.Errorf("%s: %+v", host, got)
		}
	}
}

// The package's configuration is valid as it is, and each line that it offers in a comment names a setting.
func TestPackagedConfiguration(t *testing.T) {
	const file = "../../deploy/package/grapevine.yaml"
	if got := grapevine(t, "", "serve", "--check-config", "--config", file); got.code != 0 || got.out != "configuration is valid: 0 backends, strategy prefix\n" {
		t.Errorf("%+v", got)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	offered := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimPrefix(line, "#")
		key, _, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, " ") {
			continue // prose, or an entry of a list
		}
		offered++
		if !slices.ContainsFunc(config.Settings(), func(s config.Setting) bool { return s.Key == key }) {
			t.Errorf("%q is no setting", key)
		}
	}
	if offered < 8 {
		t.Errorf("%d settings found", offered)
	}
}

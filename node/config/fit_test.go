package config

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"grapevine.example/proxy"
)

func TestFit(t *testing.T) {
	for name, tc := range map[string]struct {
		change      func(*Config)
		memory      int64
		descriptors int
		want        Limits
		warns       string // "": no warning
	}{
		"enough":            {nil, 16 << 30, 1 << 20, Limits{32 << 20, 4 << 30, 262144, 16 << 30, 1 << 20}, ""},
		"unknown":           {nil, 0, 0, Limits{32 << 20, proxy.DefaultMaxBodyMemory, 262144, 0, 0}, ""},
		"little memory":     {nil, 96 << 20, 0, Limits{8 << 20, 24 << 20, 262144, 96 << 20, 0}, "set max_body_memory"},
		"told what to take": {func(c *Config) { c.MaxBodyMemory = 1 << 30 }, 96 << 20, 0, Limits{32 << 20, 1 << 30, 262144, 96 << 20, 0}, ""},
		"few descriptors":   {nil, 0, 200, Limits{32 << 20, proxy.DefaultMaxBodyMemory, 75, 0, 200}, "LimitNOFILE"},
		"some descriptors":  {nil, 0, 20000, Limits{32 << 20, proxy.DefaultMaxBodyMemory, 9488, 0, 20000}, "LimitNOFILE"},
		"fewer connections": {func(c *Config) { c.MaxConnections = 50 }, 0, 200, Limits{32 << 20, proxy.DefaultMaxBodyMemory, 50, 0, 200}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			if tc.change != nil {
				tc.change(&c)
			}
			got := c.fit(tc.memory, tc.descriptors)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			var log bytes.Buffer
			got.Warn(&c, zerolog.New(&log))
			if lines := strings.Count(log.String(), "\n"); tc.warns == "" && lines > 0 || tc.warns != "" && (lines != 1 || !strings.Contains(log.String(), tc.warns)) {
				t.Errorf("log %q", log.String())
			}
		})
	}
}

package node

import (
	"strings"
	"testing"
	"time"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/proxy/policy"
)

func FuzzView(f *testing.F) {
	for _, seed := range []string{
		"backends: [http://a, {url: https://b, models: [x], weight: 2}]", "rules: [{path: /x, strategy: random}]",
		"backends: [{url: https://a, ca_file: x}]", "backends:\n- &x {url: http://a}\n- *x",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, lines, err := config.Parse("f.yaml", text)
		if err != nil || c.Validate("f.yaml", lines) != nil {
			return
		}
		known, err := backends.NewDirectory(backends.Config{
			Own: c.Backends, Rules: c.Rules, Numbers: backends.NewRegistry(c.MaxNumbers(), nil, time.Now),
			Publish: func(*backends.Roster, *backends.Roster, *policy.View) {},
		})
		if err != nil {
			if !strings.Contains(err.Error(), "ca_file") {
				t.Errorf("valid, and no targets: %v\n%s", err, text)
			}
			return
		}
		if err := known.Publish(); err != nil {
			t.Errorf("valid, and no view: %v\n%s", err, text)
		}
	})
}

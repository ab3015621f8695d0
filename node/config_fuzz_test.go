package node

import (
	"strings"
	"testing"
	"time"

	"grapevine/node/backends"
	"grapevine/node/config"
)

// FuzzView: every valid configuration gives a view.
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
		known, err := newFleet(c.Backends, c.Rules, time.Second, backends.New(c.MaxNumbers(), nil, time.Now))
		if err != nil {
			if !strings.Contains(err.Error(), "ca_file") {
				t.Errorf("valid, and no targets: %v\n%s", err, text)
			}
			return
		}
		if _, err := known.view(); err != nil {
			t.Errorf("valid, and no view: %v\n%s", err, text)
		}
	})
}

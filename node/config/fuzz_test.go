package config

import (
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "listen: ':1'", "backends: [http://a, {url: https://b, models: [x], weight: 2}]", "rules: [{path: /x, strategy: random}]",
		"weights: {prefix: 1}", "a: &a [*a]", "backends: &b [*b]", "? [x]\n: y", "<<: {listen: x}", "backends:\n- &x {url: http://a}\n- *x",
		"max_body: 1e9GiB", "listen: !!binary aGk=", "- \n-", "---\n---\n", "\xff", "models_interval: -1s", "weights: {load: .nan}", "horizon: !!int 3",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, lines, err := Parse("f.yaml", text)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a reason")
			}
			return
		}
		if err := c.Validate("f.yaml", lines); err != nil {
			return
		}
		for i := range c.Backends {
			if addr, _, _, _ := c.Backends[i].Address(); addr == "" {
				t.Errorf("valid, and no address: %+v\n%s", c.Backends[i], text)
			}
		}
	})
}

func FuzzBackendText(f *testing.F) {
	for _, seed := range []string{"http://a", "http://[::1]:8000/x/v1,name=n,models=a|b,weight=1e9", "https://h:1,ca_file=f", "http://%zz", "http://a:99999", ",,,", "http://a,weight=NaN"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b Backend
		if b.UnmarshalText([]byte(text)) != nil {
			return
		}
		if addr, host, _, _ := b.Address(); addr == "" || host == "" || b.Name == "" || !HeaderWord(b.Name) || !(b.Weight > 0) {
			t.Errorf("%q was read as %+v, at %q for %q", text, b, addr, host)
		}
		var r Rule
		_ = r.UnmarshalText([]byte(text))
	})
}

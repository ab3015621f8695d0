package rules

import (
	"fmt"
	"math"
	"testing"
)

func TestRuleMistakes(t *testing.T) {
	strategies := []string{"prefix", "random"}
	ok := Rule{Name: "n", Pool: "zone=a"}
	var many []Rule
	for i := range MaxPools + 1 {
		many = append(many, Rule{Pool: fmt.Sprint("n=", i)})
	}
	for name, tc := range map[string]struct {
		rules []Rule
		at    int
	}{
		"nothing to do":               {[]Rule{{Model: "m"}}, 0},
		"a strategy":                  {[]Rule{ok, {Strategy: "best"}}, 1},
		"a share above all":           {[]Rule{{Name: "n", Share: 1, To: "m"}}, 0},
		"a share below none":          {[]Rule{{Name: "n", Share: -0.1, To: "m"}}, 0},
		"a share that is no number":   {[]Rule{{Name: "n", Share: math.NaN(), To: "m"}}, 0},
		"a share without a name":      {[]Rule{{Share: 0.1, To: "m"}}, 0},
		"a model that is no text":     {[]Rule{{To: "m\"", Name: "n"}}, 0},
		"a pool of any":               {[]Rule{{Pool: AnyBackend}}, 0},
		"a fallback without a pool":   {[]Rule{{To: "m", Fallback: AnyBackend}}, 0},
		"a fallback that is the pool": {[]Rule{{Pool: "zone=a", Fallback: "zone=a"}}, 0},
		"a session":                   {[]Rule{{Session: "cookie:x"}}, 0},
		"a session without a name":    {[]Rule{{Session: headerSession}}, 0},
		"a name twice":                {[]Rule{ok, {Pool: "zone=b"}, ok}, 2},
		"too many pools":              {many, MaxPools},
		"too many rules":              {make([]Rule, Max+1), Max},
	} {
		if at, err := Check(tc.rules, strategies); err == nil || at != tc.at {
			t.Errorf("%s: %v at %d, want one at %d", name, err, at, tc.at)
		}
	}
	if at, err := Check([]Rule{ok, {Model: "m", To: "n", Session: "body:user", Pool: "zone=a,tier=b", Fallback: AnyBackend}}, strategies); err != nil {
		t.Errorf("%v at %d", err, at)
	}
}

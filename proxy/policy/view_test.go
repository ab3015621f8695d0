package policy

import (
	"errors"
	"math"
	"strings"
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/rules"
)

func TestNewViewNamesPlaceAndRemedy(t *testing.T) {
	ok := Backend{ID: 1, Name: "a"}
	for name, c := range map[string]struct {
		backends []Backend
		rules    []rules.Rule
		want     []string
	}{
		"same id":          {[]Backend{ok, {ID: 1, Name: "b"}}, nil, []string{"backends[1]", "id 1", "id of its own"}},
		"same name":        {[]Backend{ok, {ID: 2, Name: "a"}}, nil, []string{"backends[1]", `"a"`, "once"}},
		"negative weight":  {[]Backend{{ID: 2, Name: "b", Weight: -1}}, nil, []string{"backends[0] (b)", "weight -1", "above 0"}},
		"no number":        {[]Backend{{ID: 2, Name: "b", Weight: math.NaN()}}, nil, []string{"weight NaN"}},
		"negative memory":  {[]Backend{{ID: 2, Name: "b", KVTokens: -5}}, nil, []string{"kv tokens -5", "0 if unknown"}},
		"no such state":    {[]Backend{{ID: 2, Name: "b", State: 7}}, nil, []string{"state 7", "draining"}},
		"empty model":      {[]Backend{{ID: 2, Name: "b", Models: []string{""}}}, nil, []string{"empty model"}},
		"no strategy":      {nil, []rules.Rule{{Model: "m"}}, []string{"rules[0]", "prefix-hash"}},
		"unknown strategy": {nil, []rules.Rule{{Strategy: Prefix}, {Strategy: "best"}}, []string{"rules[1]", `"best"`, "least-request"}},
		"value, no header": {nil, []rules.Rule{{Strategy: Prefix, HeaderValue: "x"}}, []string{"rules[0]", "header"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewView(c.backends, c.rules)
			if !errors.Is(err, ErrView) {
				t.Fatalf("got %v, want ErrView", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

func TestModelsDecideWhoIsEligible(t *testing.T) {
	backends := []Backend{
		{ID: 0, Name: "small", Models: []string{"small"}},
		{ID: 1, Name: "large", Models: []string{"large", "larger"}},
	}
	r, _ := newRouter(t, Config{Strategy: RoundRobin}, backends)
	for model, want := range map[string]prefixtree.Backend{"small": 0, "large": 1, "larger": 1} {
		for range 3 {
			if d := serve(t, r, &Request{Model: []byte(model)}, t0); d.Backend != want {
				t.Errorf("%s went to %d", model, d.Backend)
			}
		}
	}
	var a Attempt
	if err := r.Pick(&Request{Model: []byte("other")}, t0, &a); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("unknown model: %v", err)
	}
	backends[0].State = Down
	setView(t, r, backends)
	if err := r.Pick(&Request{Model: []byte("small")}, t0, &a); !errors.Is(err, ErrNoBackend) {
		t.Errorf("known model, no backend up: %v", err)
	}
	backends = append(backends, Backend{ID: 2, Name: "any"})
	setView(t, r, backends)
	for _, model := range []string{"other", "small"} {
		if d := serve(t, r, &Request{Model: []byte(model)}, t0); d.Backend != 2 {
			t.Errorf("%s went to %d, want the backend that serves any", model, d.Backend)
		}
	}
}

func TestDrainingTakesNoNewWork(t *testing.T) {
	for _, strategy := range builtin {
		backends := fleetOf(4)
		r, _ := newRouter(t, Config{Strategy: strategy}, backends)
		q := ask(prompt(1, 1, 0, 8))
		q.Session = []byte("s")
		first := serve(t, r, q, t0).Backend
		backends[first].State = Draining
		setView(t, r, backends)
		for i := range 8 {
			if d := serve(t, r, q, t0+prefixtree.Time(i)); d.Backend == first {
				t.Fatalf("%s: draining backend %d got new work", strategy, first)
			}
		}
	}
}

func TestRules(t *testing.T) {
	list := []rules.Rule{
		{Model: "code-*", Strategy: Session},
		{Model: "embed", Strategy: RoundRobin},
		{PathPrefix: "/v1/embeddings", Strategy: LeastRequest},
		{Header: "x-tier", HeaderValue: "batch", Strategy: Random},
		{Header: "x-pin", Strategy: PrefixHash},
	}
	r, _ := newRouter(t, Config{}, fleetOf(3), list...)
	header := func(name, value string) func(string) []byte {
		return func(n string) []byte {
			if n == name {
				return []byte(value)
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		q    Request
		want string
	}{
		"none fits":         {Request{Model: []byte("chat")}, Prefix},
		"model prefix":      {Request{Model: []byte("code-7b")}, Session},
		"prefix is no glob": {Request{Model: []byte("code")}, Prefix},
		"exact model":       {Request{Model: []byte("embed"), Path: []byte("/v1/embeddings")}, RoundRobin},
		"path":              {Request{Path: []byte("/v1/embeddings")}, LeastRequest},
		"header value":      {Request{Header: header("x-tier", "batch")}, Random},
		"other value":       {Request{Header: header("x-tier", "gold")}, Prefix},
		"header present":    {Request{Header: header("x-pin", "1")}, PrefixHash},
		"header empty":      {Request{Header: header("x-pin", " ")}, Prefix},
	} {
		if d := serve(t, r, &c.q, t0); d.Strategy != c.want {
			t.Errorf("%s: %s, want %s", name, d.Strategy, c.want)
		}
	}
}

func TestNewRouterRefusesNonsense(t *testing.T) {
	tree := newTree(t)
	for name, cfg := range map[string]Config{
		"strategy": {Strategy: "best"},
		"scorer":   {Weights: map[string]float64{"prefixes": 1}},
		"weight":   {Weights: map[string]float64{"prefix": -1}},
		"huge":     {Weights: map[string]float64{"prefix": 1e300}},
		"nan":      {Weights: map[string]float64{"prefix": math.NaN()}},
		"nodes":    {Nodes: -1},
		"shadow":   {Extra: map[string]Strategy{Prefix: leastRequest{}}},
	} {
		if _, err := NewRouter(cfg, tree); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewRouter(Config{}, nil); !errors.Is(err, ErrConfig) {
		t.Errorf("no tree: %v", err)
	}
}

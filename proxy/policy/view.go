package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/rules"
)

type State uint8

// Only Active backends take new work.
const (
	Active State = iota
	Draining
	Down
)

// String returns the name used in configuration and the admin API.
func (s State) String() string {
	if s <= Down {
		return [...]string{"active", "draining", "down"}[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Role says which part of a request a backend computes.
type Role uint8

const (
	Both    Role = iota // whole requests
	Prefill             // prompts, for backends that decode
	Decode              // replies, to prompts that a prefill backend computed or, unless Paired, itself
)

// String returns the name used in configuration and the admin API.
func (r Role) String() string {
	if r <= Decode {
		return [...]string{"both", "prefill", "decode"}[r]
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

type Backend struct {
	ID         prefixtree.Backend
	Generation uint32   // a new generation starts with empty books; 0: unknown
	Name       string   // stable across restarts: rendezvous orders depend on it
	Models     []string // empty: serves any model
	Adapters   []string // those of Models that are LoRA adapters; sorted
	Labels     []string // NAME=VALUE, for pools of rules; of the name zone, where it is
	Weight     float64  // relative share of work; 0 means 1
	State      State
	Role       Role
	Paired     bool            // serves only its part of a request, as SGLang's prefill and decode engines do
	KVTokens   int             // capacity of the KV cache in tokens; 0: unknown
	Since      prefixtree.Time // start of slow start; 0: none
	Handle     any             // the caller's value, copied to Decision.Handle
}

// View is an immutable set of backends and rules.
type View struct {
	Backends []Backend
	Rules    []rules.Rule

	byID    []int32
	byKey   map[uint32]int32 // by prefixtree.BackendKey
	byModel map[string][]int32
	general []int32
	all     []int32
}

// ErrView is wrapped by every error of NewView.
var ErrView = errors.New("invalid view")

// NewView validates and copies backends and rules.
func NewView(backends []Backend, list []rules.Rule) (*View, error) {
	v := &View{
		Backends: slices.Clone(backends),
		Rules:    slices.Clone(list),
		byModel:  map[string][]int32{},
	}
	if err := v.indexBackends(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrView, err)
	}
	if i, err := rules.Check(v.Rules, builtin); err != nil {
		return nil, fmt.Errorf("%w: rules[%d]: %w", ErrView, i, err)
	}
	v.indexModels()
	return v, nil
}

func (v *View) indexBackends() error {
	names := make(map[string]int, len(v.Backends))
	v.byKey = make(map[uint32]int32, len(v.Backends))
	top := 0
	for _, b := range v.Backends {
		top = max(top, int(b.ID)+1)
	}
	v.byID = slices.Repeat([]int32{-1}, top)
	for i := range v.Backends {
		b := &v.Backends[i]
		b.Models = slices.Clone(b.Models)
		if j := v.byID[b.ID]; j >= 0 {
			return fmt.Errorf("backends[%d]: id %d is already that of backends[%d]: give every backend an id of its own", i, b.ID, j)
		}
		v.byID[b.ID] = int32(i)
		if j, ok := names[b.Name]; ok && b.Name != "" {
			return fmt.Errorf("backends[%d]: name %q is already that of backends[%d]: list every backend once", i, b.Name, j)
		}
		names[b.Name] = i
		v.byKey[prefixtree.BackendKey(b.Name)] = int32(i)
		if b.Weight < 0 || math.IsNaN(b.Weight) || math.IsInf(b.Weight, 0) {
			return fmt.Errorf("backends[%d] (%s): weight %v: use a number above 0, or leave it out for 1", i, b.Name, b.Weight)
		}
		if b.Weight == 0 {
			b.Weight = 1
		}
		if b.KVTokens < 0 {
			return fmt.Errorf("backends[%d] (%s): kv tokens %d: use the engine's cache capacity in tokens, or 0 if unknown", i, b.Name, b.KVTokens)
		}
		if b.State > Down {
			return fmt.Errorf("backends[%d] (%s): state %d: use active, draining or down", i, b.Name, b.State)
		}
		if b.Role > Decode || b.Paired && b.Role == Both {
			return fmt.Errorf("backends[%d] (%s): role %s, paired %t: use both, prefill or decode; only prefill and decode backends are paired", i, b.Name, b.Role, b.Paired)
		}
		if slices.Contains(b.Models, "") {
			return fmt.Errorf("backends[%d] (%s): empty model name: remove it, or list no models to serve any", i, b.Name)
		}
	}
	return nil
}

// indexModels makes one pass: engines may declare hundreds of adapters.
func (v *View) indexModels() {
	v.all = make([]int32, len(v.Backends))
	declared := map[string]*[]int32{}
	for i := range v.Backends {
		v.all[i] = int32(i)
		if len(v.Backends[i].Models) == 0 {
			v.general = append(v.general, int32(i))
		}
		for _, m := range v.Backends[i].Models {
			at := declared[m]
			if at == nil {
				at = new([]int32)
				declared[m] = at
			}
			if n := len(*at); n == 0 || (*at)[n-1] != int32(i) {
				*at = append(*at, int32(i))
			}
		}
	}
	for m, at := range declared {
		if v.byModel[m] = *at; len(v.general) > 0 {
			list := slices.Concat(*at, v.general)
			slices.Sort(list)
			v.byModel[m] = list
		}
	}
}

// Backend returns the entry, which must not be changed, or false.
func (v *View) Backend(id prefixtree.Backend) (*Backend, bool) {
	if int(id) >= len(v.byID) || v.byID[id] < 0 {
		return nil, false
	}
	return &v.Backends[v.byID[id]], true
}

func (v *View) Models() []string {
	return slices.Sorted(maps.Keys(v.byModel))
}

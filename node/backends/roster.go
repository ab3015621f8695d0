package backends

import (
	"errors"
	"fmt"

	"grapevine.example/node/config"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/rules"
	"grapevine.example/raftstore"
)

// Roster is one version of the backends and rules: the agreed or, before, the node's own. Only the
// links of its engines change.
type Roster struct {
	Version uint64 // of the agreed state; 0: the node's own list
	List    []*Engine
	Rules   []rules.Rule
	Source  raftstore.Rules // source of Rules; empty text: the node's own
	// Open: a backend declares no models, so unlisted ones may exist.
	Open bool

	byID  []*Engine
	byKey map[uint32]*Engine
}

// At returns nil for an unknown number or a nil r.
func (r *Roster) At(id prefixtree.Backend) *Engine {
	if r == nil || int(id) >= len(r.byID) {
		return nil
	}
	return r.byID[id]
}

func (r *Roster) ByKey(key uint32) *Engine { return r.byKey[key] }

func (r *Roster) Named(name string) *Engine {
	if e := r.byKey[prefixtree.BackendKey(name)]; e != nil && e.Name == name {
		return e
	}
	return nil
}

func (r *Roster) Names() []string {
	names := make([]string, len(r.List))
	for i, e := range r.List {
		names[i] = e.Name
	}
	return names
}

func (d *Directory) ownRoster() (*Roster, error) {
	list := make([]*Engine, len(d.cfg.Own))
	for i := range d.cfg.Own {
		list[i] = &Engine{Backend: d.cfg.Own[i].Spec()}
		list[i].Generation = firstGeneration
	}
	list, err := d.number(list)
	return d.newRoster(0, list, d.rules), err
}

// agreedRoster keeps the node's own rules if the agreed ones, perhaps of a later release, do not
// parse. The error names these rules and backends left out.
func (d *Directory) agreedRoster(s *raftstore.State) (*Roster, error) {
	list, all := make([]*Engine, len(s.Backends)), make([]Engine, len(s.Backends))
	for i := range s.Backends {
		list[i] = &all[i]
		all[i] = Engine{Backend: s.Backends[i], Agreed: true}
	}
	list, errNumbers := d.number(list)
	old := d.Roster()
	for _, e := range list {
		e.since = e.startedSince(old.At(e.ID))
	}
	rules, err := d.rulesOf(s)
	r := d.newRoster(s.Version, list, rules)
	if r.Source = s.Rules; err != nil {
		r.Source.Text = ""
	}
	return r, errors.Join(err, errNumbers)
}

func (d *Directory) number(list []*Engine) ([]*Engine, error) {
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name
	}
	numbers, refused := d.cfg.Numbers.List(names)
	var errs []error
	numbered := list[:0]
	for i, e := range list {
		if refused[i] != nil {
			errs = append(errs, fmt.Errorf("no request goes to backend %s: %w", e.Name, refused[i]))
			continue
		}
		e.ID, e.Key = numbers[i], prefixtree.BackendKey(e.Name)
		numbered = append(numbered, e)
	}
	return numbered, errors.Join(errs...)
}

func (d *Directory) rulesOf(s *raftstore.State) ([]rules.Rule, error) {
	if s.Rules.Text == "" {
		return d.rules, nil
	}
	rules, err := config.ParseRules(s.Rules.Text)
	if err != nil {
		return d.rules, fmt.Errorf("agreed rules of version %d: %w", s.Rules.Version, err)
	}
	return config.Specs(rules), nil
}

func (d *Directory) newRoster(version uint64, list []*Engine, rules []rules.Rule) *Roster {
	r := &Roster{Version: version, List: list, Rules: rules, Open: len(list) == 0, byKey: make(map[uint32]*Engine, len(list))}
	old := d.current.Load()
	top := 0
	for _, e := range list {
		top = max(top, int(e.ID)+1)
	}
	r.byID = make([]*Engine, top)
	for _, e := range list {
		was := old.At(e.ID)
		if was != nil && was.url != e.URL {
			was = nil
		}
		d.connect(e, was, d.keys[e.Name])
		r.byID[e.ID], r.byKey[e.Key] = e, e
		r.Open = r.Open || len(e.Models) == 0
	}
	return r
}

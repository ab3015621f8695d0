package backends

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"grapevine.example/raftstore"
)

const (
	// modelListFresh is how long an answer is reused.
	modelListFresh = 3 * time.Second
	// maxModelEntry bounds a kept entry; of larger ones only the id is used.
	maxModelEntry = 4 << 10
)

type listedModel struct {
	id      string
	adapter bool
	raw     json.RawMessage
	by      *link // the sender; other engines' entries are ignored
}

type modelList struct {
	of       *Roster
	reported uint64
	at       time.Time
	known    bool // false: there are backends, and no models are known
	ids      []string
	page     []byte // of all ids
	byID     map[string]json.RawMessage
}

// d.mu must be held.
func (d *Directory) noteEntries(e *Engine, list []listedModel) {
	for _, m := range list {
		was, known := d.entries[m.id]
		if len(m.raw) > maxModelEntry || known && was.by != nil && was.by != e.link || !known && len(d.entries) >= maxModelNames {
			continue
		}
		m.by = e.link
		d.entries[m.id] = m
	}
}

// ModelsAnswer is the body for /v1/models or /v1/models/ID; nil if unknown. It lists only models that
// a client may use; nil: all.
func (d *Directory) ModelsAnswer(id string, may func(id []byte) bool) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.page
	if l == nil || l.of != d.Roster() || l.reported != d.reported || time.Since(l.at) > modelListFresh {
		l = d.newModelList()
		d.page = l
	}
	switch {
	case id == "" && may == nil || !l.known:
		return l.page
	case id == "":
		return modelPage(slices.DeleteFunc(slices.Clone(l.ids), func(id string) bool { return !may([]byte(id)) }), l.byID)
	case may != nil && !may([]byte(id)):
		return nil
	}
	return l.byID[id]
}

// newModelList merges the models of backends that are not down, and the names that rules give these. d.mu must be held.
func (d *Directory) newModelList() *modelList {
	l := &modelList{of: d.Roster(), reported: d.reported, at: time.Now(), byID: make(map[string]json.RawMessage)}
	links, kept := make(map[*link]bool), make(map[string]bool)
	l.known = len(d.Roster().List) == 0
	for _, e := range l.of.List {
		links[e.link] = true
		models := e.models()
		l.known = l.known || models != nil
		for _, id := range models {
			kept[id] = true
			if e.State == raftstore.Down || l.byID[id] != nil {
				continue
			}
			raw := d.entries[id].raw
			if raw == nil {
				raw = declaredModel(id)
			}
			l.byID[id] = raw
			l.ids = append(l.ids, id)
		}
	}
	for i := range l.of.Rules {
		// A prefix is no name, and an alias of a model that no engine serves is none either.
		r := &l.of.Rules[i]
		if r.To != "" && r.Model != "" && !strings.HasSuffix(r.Model, "*") && l.byID[r.To] != nil && l.byID[r.Model] == nil {
			l.byID[r.Model] = declaredModel(r.Model)
			l.ids = append(l.ids, r.Model)
		}
	}
	for id, m := range d.entries {
		if !kept[id] {
			delete(d.entries, id)
		} else if !links[m.by] {
			m.by = nil
			d.entries[id] = m
		}
	}
	if l.known {
		slices.Sort(l.ids)
		l.page = modelPage(l.ids, l.byID)
	}
	return l
}

func declaredModel(id string) json.RawMessage {
	text, _ := json.Marshal(map[string]any{"id": id, "object": "model", "created": 0, "owned_by": "grapevine"}) // cannot fail
	return text
}

// modelPage is OpenAI's list with Anthropic's paging fields.
func modelPage(ids []string, byID map[string]json.RawMessage) []byte {
	page := struct {
		Object  string            `json:"object"`
		Data    []json.RawMessage `json:"data"`
		FirstID *string           `json:"first_id"`
		LastID  *string           `json:"last_id"`
		HasMore bool              `json:"has_more"`
	}{Object: "list", Data: make([]json.RawMessage, len(ids))}
	for i, id := range ids {
		page.Data[i] = byID[id]
	}
	if n := len(ids); n > 0 {
		page.FirstID, page.LastID = &ids[0], &ids[n-1]
	}
	text, _ := json.Marshal(page)
	return text
}

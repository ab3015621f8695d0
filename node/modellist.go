package node

import (
	"encoding/json"
	"slices"
	"time"

	"grapevine/proxy/policy"
)

const (
	// modelListFresh is how long an answer is reused; engines send new times of creation with every
	// list.
	modelListFresh = 3 * time.Second
	// maxModelEntry bounds an entry that is kept; else only its id is used.
	maxModelEntry = 4 << 10
)

type listedModel struct {
	id  string
	raw json.RawMessage
	by  *link // the sender; other engines' entries are ignored
}

// modelList is an immutable answer to /v1/models.
type modelList struct {
	of    *roster
	heard uint64
	at    time.Time
	page  []byte // nil: there are backends, and no models are known
	byID  map[string]json.RawMessage
}

// noteEntries keeps the entries of an engine's list. f.mu must be held.
func (f *fleet) noteEntries(u *upstream, list []listedModel) {
	for _, m := range list {
		was, known := f.entries[m.id]
		if len(m.raw) > maxModelEntry || known && was.by != nil && was.by != u.link || !known && len(f.entries) >= maxModelNames {
			continue
		}
		m.by = u.link
		f.entries[m.id] = m
	}
}

// modelsAnswer is the body for /v1/models or /v1/models/ID; nil if unknown.
func (f *fleet) modelsAnswer(id string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.listed
	if l == nil || l.of != f.roster() || l.heard != f.heard || time.Since(l.at) > modelListFresh {
		l = f.newModelList()
		f.listed = l
	}
	if id == "" {
		return l.page
	}
	return l.byID[id]
}

// newModelList merges the models of backends that are not down. f.mu must be held.
func (f *fleet) newModelList() *modelList {
	l := &modelList{of: f.roster(), heard: f.heard, at: time.Now(), byID: make(map[string]json.RawMessage)}
	links, kept, told := make(map[*link]bool), make(map[string]bool), len(f.roster().list) == 0
	var ids []string
	for _, u := range l.of.list {
		links[u.link] = true
		models := u.models()
		told = told || models != nil
		for _, id := range models {
			kept[id] = true
			if u.state == policy.Down || l.byID[id] != nil {
				continue
			}
			raw := f.entries[id].raw
			if raw == nil {
				raw = declaredModel(id)
			}
			l.byID[id] = raw
			ids = append(ids, id)
		}
	}
	for id, m := range f.entries {
		if !kept[id] {
			delete(f.entries, id)
		} else if !links[m.by] {
			m.by = nil
			f.entries[id] = m
		}
	}
	if told {
		slices.Sort(ids)
		l.page = modelPage(ids, l.byID)
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

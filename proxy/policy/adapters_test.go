package policy

import (
	"fmt"
	"testing"

	"grapevine.example/prefixtree"
)

// A model that an engine lists as an adapter goes where it has a slot; the base model, and adapters of engines that report no slots,
// go anywhere.
func TestAdaptersKeepTheirSlots(t *testing.T) {
	list := fleetOf(4)
	for i := range list {
		list[i].Models, list[i].Adapters = []string{"base", "de", "fr"}, []string{"de", "fr"}
	}
	for _, slots := range []int{0, 2} {
		r, _ := newRouter(t, Config{Seed: 1}, list)
		used := map[string]map[prefixtree.Backend]bool{"base": {}, "de": {}, "fr": {}}
		for i := range 400 {
			now := t0 + prefixtree.Time(i*50)
			for b := range list {
				r.SetAdapters(list[b].ID, slots, []string{"de", "fr", "others"}[b%2:b%2+1], now)
			}
			for model, at := range used {
				q := ask(prompt(uint64(i), uint64(i)<<8+uint64(len(model)), 0, 20))
				q.Model = []byte(model)
				a := pick(t, r, q, now)
				a.Dispatched(now)
				a.FirstToken(now + 10)
				a.End(Outcome{PromptTokens: 2000, CachedTokens: 0, OutputTokens: 100}, now+2000)
				if i > 20 {
					at[a.Decision().Backend] = true
				}
			}
		}
		want := map[string]int{"base": 4, "de": 4, "fr": 4}
		if slots > 0 {
			want = map[string]int{"base": 4, "de": 2, "fr": 2}
		}
		for model, n := range want {
			if len(used[model]) != n {
				t.Errorf("%d slots: %s is on engines %v, want %d of them", slots, model, fmt.Sprint(used[model]), n)
			}
		}
	}
}

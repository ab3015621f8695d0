package history

import (
	"fmt"
	"strings"
	"testing"

	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
)

func TestReceiptsKeepTheLatest(t *testing.T) {
	k := new(Receipts)
	r := &proxy.Record{Path: []byte("/v1/x"), Model: []byte("m"), Status: 200, Backend: "b", Decision: &policy.Decision{Strategy: "prefix"}}
	for i := range kept + 10 {
		r.ID = fmt.Appendf(r.ID[:0], "id-%d", i)
		r.Decision.Candidates = append(r.Decision.Candidates[:0], policy.Considered{Name: string(r.ID)})
		k.Observe(r)
	}
	all := k.Latest("")
	if len(all) != kept || all[0].ID != "id-265" || all[kept-1].ID != "id-10" {
		t.Fatalf("%d receipts, from %s to %s", len(all), all[0].ID, all[len(all)-1].ID)
	}
	for _, one := range all {
		if one.Path != "/v1/x" || len(one.Candidates) != 1 || one.Candidates[0].Name != one.ID {
			t.Fatalf("%+v: another request's candidates", one)
		}
	}
	if one := k.Latest("id-77"); len(one) != 1 || one[0].ID != "id-77" {
		t.Errorf("%+v", one)
	}
	if none := k.Latest("id-1"); len(none) != 0 {
		t.Errorf("%+v: it is long ago", none)
	}
	r.ID, r.Decision = []byte(strings.Repeat("x", 10*maxID)), nil
	k.Observe(r)
	if one := k.Latest("")[0]; len(one.ID) != maxID || len(one.Candidates) > 0 || one.Strategy != "" {
		t.Errorf("%+v", one)
	}
}

func TestReceiptsDoNotAllocate(t *testing.T) {
	k := new(Receipts)
	r := &proxy.Record{ID: []byte("an-id"), Path: []byte("/v1/x"), Decision: &policy.Decision{Candidates: make([]policy.Considered, policy.MaxConsidered)}}
	for range kept {
		k.Observe(r)
	}
	if n := testing.AllocsPerRun(1000, func() { k.Observe(r) }); n > 0 {
		t.Errorf("%v allocations for each request", n)
	}
}

func BenchmarkReceipt(b *testing.B) {
	k := new(Receipts)
	r := &proxy.Record{ID: []byte("an-id"), Path: []byte("/v1/x"), Decision: &policy.Decision{Candidates: make([]policy.Considered, policy.MaxConsidered)}}
	b.ReportAllocs()
	for b.Loop() {
		k.Observe(r)
	}
}

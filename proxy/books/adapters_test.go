package books

import (
	"testing"

	"grapevine.example/prefixtree"
)

func TestAdapterSlots(t *testing.T) {
	var a adapters
	share := func(name uint64, want float64) {
		t.Helper()
		if got := a.taken(name, t0); got != want {
			t.Errorf("adapter %d: other adapters take %v of the slots, want %v", name, got, want)
		}
	}
	share(1, 0) // nothing is known
	a.slots = 4
	share(1, 0) // no slot is in use
	a.begin(1, t0)
	share(1, 0)
	share(2, 0.5) // with its own
	a.begin(1, t0)
	a.end(1)
	share(1, 0)
	a.end(1)
	a.begin(2, t0+1)
	share(1, 0)   // no other adapter has needed its slot since
	share(3, 0.5) // an idle adapter leaves its slot
	a.reported, a.at = []uint64{2, 3, 4}, t0
	share(3, 0)
	share(5, 1)
	share(1, 0)
	a.reported = []uint64{2, 3, 4, 5}
	share(1, 1.25)
	a.at = t0 - ReportsLast
	share(3, 0.5)
}

func TestAdaptersAreBounded(t *testing.T) {
	var a adapters
	a.begin(1, t0) // stays in use
	for i := uint64(2); i < 3*maxAdapters; i++ {
		a.begin(i, t0+prefixtree.Time(i))
		a.end(i)
	}
	if len(a.own) != maxAdapters || a.find(1) == nil || a.find(3*maxAdapters-1) == nil || a.find(maxAdapters) != nil {
		t.Errorf("%d adapters: %+v", len(a.own), a.own)
	}
	for i := range a.own {
		a.own[i].active = 1
	}
	a.begin(9999, t0)
	a.end(9999)
	if a.find(9999) != nil || len(a.own) != maxAdapters {
		t.Error("an adapter in use was forgotten")
	}
}

package demand

import "testing"

// What a prefix lacks because its place is new, those behind it show; a lost place leaves the rest in order.
func TestShapeOfLateAndLostPlaces(t *testing.T) {
	m := Tree{Requests: 100, places: []counted{
		{1, place{blocks: 10, seen: 5, left: 9}},
		{2, place{above: 1, blocks: 20, seen: 40, left: 1}}, // of one conversation
		{3, place{above: 2, blocks: 30, seen: 30, left: 4}},
		{4, place{above: 1, blocks: 15, seen: 20, left: 4}},
		{5, place{above: 99, blocks: 40, seen: 8, left: 2}},
	}}
	got := m.Shape(10, 100)
	want := []SharedPrefix{
		{Anchor: 1, Tokens: 1000, Requests: 60, Left: 9}, {Anchor: 3, Above: 1, Tokens: 3000, Requests: 30, Left: 4},
		{Anchor: 4, Above: 1, Tokens: 1500, Requests: 20, Left: 4}, {Anchor: 5, Tokens: 4000, Requests: 8, Left: 2},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("prefix %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

package clients

import (
	"fmt"
	"testing"
)

func TestFind(t *testing.T) {
	var list []*Client
	for i := range 500 {
		list = append(list, &Client{Name: fmt.Sprintf("c%d", i), Weight: 1, Keys: []KeyHash{HashKey(fmt.Appendf(nil, "key%d", i))}})
	}
	// Two hashes that begin alike share a bucket.
	twin := list[3].Keys[0]
	twin[31]++
	list = append(list, &Client{Name: "twin", Weight: 1, Keys: []KeyHash{twin}})
	b, err := New(list, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if c := b.Find(fmt.Appendf(nil, "key%d", i)); c != list[i] {
			t.Errorf("key %d: %+v", i, c)
		}
	}
	if b.find(twin) != list[500] || b.Find([]byte("key")) != nil || b.Find(nil) != nil || b.Anonymous != nil {
		t.Error("a wrong client is found")
	}
	key := []byte("key7")
	if n := testing.AllocsPerRun(100, func() { b.Find(key) }); n != 0 {
		t.Errorf("Find allocates %v times", n)
	}
}

func BenchmarkFind(b *testing.B) {
	var list []*Client
	for i := range 10_000 {
		list = append(list, &Client{Name: fmt.Sprintf("c%d", i), Weight: 1, Keys: []KeyHash{HashKey(fmt.Appendf(nil, "key%d", i))}})
	}
	book, err := New(list, "")
	if err != nil {
		b.Fatal(err)
	}
	key := []byte("key1234")
	b.ReportAllocs()
	for b.Loop() {
		if book.Find(key) == nil {
			b.Fatal("not found")
		}
	}
}

package ledger

import (
	"testing"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine/events"
)

// instructed has a first message of 480 bytes, whose end is mark 50, and a question.
func instructed(question uint64) *Prompt {
	return &Prompt{
		Blocks:     []prefixtree.Hash{101, prefixtree.Hash(1000 + question)},
		Marks:      []prefixtree.Mark{{Hash: 50, Bytes: 480}, {Hash: prefixtree.Hash(question), Bytes: 640}},
		BlockBytes: 256,
	}
}

func (l *Ledger) ask(id uint64, q *Prompt) []byte {
	l.Sent(id, q)
	return l.cfg.Stamps.Append(nil, Stamp{ID: id, End: q.Marks[1].Hash, Bytes: q.bytes()})
}

// A branch that one engine has shown is exact on another one that has the text, whose request no node placed here.
func TestLinksServeOtherEngines(t *testing.T) {
	links := NewLinks()
	follow := func(links *Links) *Ledger {
		l := newLedger(t, 100)
		l.cfg.Links = links
		return l
	}
	one := follow(links)
	one.Batch([]events.Event{stored(one.ask(1, instructed(7)), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)})
	one.Ended(1, 165, 0, 1)
	one.Batch([]events.Event{stored(one.ask(2, instructed(8)), 6, 17, 18, 19)}) // the texts part behind block 6
	for _, c := range []struct {
		name  string
		links *Links
		want  Held
	}{
		{"shared", links, Held{Known: true, Tokens: 96}},
		{"not shared", nil, Held{}},
	} {
		two := follow(c.links)
		two.Batch([]events.Event{stored([]byte("another client's"), 0, 1, 2, 3, 4, 5, 6, 27, 28)})
		if h := two.Held(instructed(9), 0); h != c.want {
			t.Errorf("%s: held %+v, want %+v", c.name, h, c.want)
		}
		two.Batch([]events.Event{removed(28, 27, 6, 5)})
		if h := two.Held(instructed(9), 0); h.Tokens > 64 {
			t.Errorf("%s: held %+v after an eviction, want 64 tokens at most", c.name, h)
		}
	}
	// Where equal text has other hashes, the depth still is the same.
	three := follow(links)
	three.Batch([]events.Event{stored(three.ask(1, instructed(9)), 0, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)})
	if h := three.Held(instructed(10), 0); h != (Held{Known: true, Tokens: 96}) {
		t.Errorf("held %+v of a text that the engine computed once, want 96 tokens", h)
	}
}

func TestLinksAreBounded(t *testing.T) {
	links := NewLinks()
	for h := range prefixtree.Hash(3 * mostLinks) {
		links.learn(&point{hash: h + 1, want: 5 | isExact}, 16)
	}
	if n := len(links.places.ring); n != mostLinks {
		t.Errorf("%d links, want %d", n, mostLinks)
	}
	if _, known := links.find(3*mostLinks, 16); !known {
		t.Error("the newest link is not known")
	}
	if _, known := links.find(3*mostLinks, 32); known {
		t.Error("a link counts for another block size")
	}
}

// A prompt goes on from the latest one that ends at one of its marks, whichever node sent that, and to whichever engine.
func TestLatestEngineOfAConversation(t *testing.T) {
	links := NewLinks()
	var ledgers []*Ledger
	for b := range prefixtree.Backend(3) {
		l := newLedger(t, 100)
		l.cfg.Links, l.cfg.Engine = links, b
		ledgers = append(ledgers, l)
	}
	marks := func(hashes ...prefixtree.Hash) (list []prefixtree.Mark) {
		for i, h := range hashes {
			list = append(list, prefixtree.Mark{Hash: h, Bytes: 100 * (i + 1)})
		}
		return list
	}
	expect := func(when string, engine prefixtree.Backend, known bool, hashes ...prefixtree.Hash) {
		t.Helper()
		if b, is := links.Latest(marks(hashes...)); b != engine || is != known {
			t.Errorf("%s: engine %d, known %t; want %d, %t", when, b, is, engine, known)
		}
	}
	expect("nothing sent", 0, false, 1, 2)
	ledgers[1].Sent(1, &Prompt{Marks: marks(1, 2), BlockBytes: 256})
	expect("the same prompt", 1, true, 1, 2)
	expect("its next turn", 1, true, 1, 2, 3, 4)
	expect("another one behind the same first message", 0, false, 1, 9)
	stamp := ledgers[2].cfg.Stamps.Append(nil, Stamp{ID: 2, End: 4, Bytes: 400})
	ledgers[2].Batch([]events.Event{stored(stamp, 0, 1, 2, 3)}) // of another node
	expect("the turn after", 2, true, 1, 2, 3, 4, 5, 6)
	ledgers[0].Sent(3, &Prompt{Marks: marks(1, 2, 3, 4), BlockBytes: 256})
	expect("sent again elsewhere", 0, true, 1, 2, 3, 4, 5, 6)
	for i := range uint64(2 * mostLinks) {
		ledgers[0].Sent(100+i, &Prompt{Marks: marks(prefixtree.Hash(1000 + i)), BlockBytes: 256})
	}
	expect("long ago", 0, false, 1, 2, 3, 4)
	if n := len(links.ends.ring); n != mostLinks {
		t.Errorf("%d ends, want %d", n, mostLinks)
	}
}

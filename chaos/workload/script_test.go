package workload

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func content(keyTokens int, texts ...int) Content {
	c := NewContent(1, keyTokens)
	for i, n := range texts {
		c.Add(uint64(i), n)
	}
	return c
}

func TestContentsShareWhatIsEqual(t *testing.T) {
	base := content(10, 25, 18)
	if len(base.Keys()) != 4 || base.Tokens() != 43 {
		t.Fatalf("%d keys, %d tokens", len(base.Keys()), base.Tokens())
	}
	if again := content(10, 25, 18); !slices.Equal(base.Keys(), again.Keys()) {
		t.Error("equal texts have different keys")
	}
	a, b := base, base
	a.Add(7, 30)
	b.Add(8, 30)
	if !slices.Equal(a.Keys()[:4], base.Keys()) || !slices.Equal(b.Keys()[:4], base.Keys()) {
		t.Error("a copy that grew lost the shared keys")
	}
	for i := 4; i < 7; i++ {
		if a.Keys()[i] == b.Keys()[i] {
			t.Errorf("block %d of different texts has one key", i)
		}
	}
	other := NewContent(2, 10)
	other.Add(0, 25)
	if other.Keys()[0] == base.Keys()[0] {
		t.Error("two roots share a key")
	}
}

func script() *Script {
	call := func(after int, at time.Duration) Call {
		c := Call{After: after, At: at, Session: 3, Turn: 1, Prompt: content(10, 25), Model: "m", NonStreaming: true}
		c.Answered = c.Prompt
		c.Answered.Add(9, 12)
		return c
	}
	return &Script{Label: "s", Length: time.Minute, Calls: []Call{
		call(-1, 2*time.Second), call(0, time.Second), call(0, 3*time.Second), call(-1, time.Second), call(2, time.Hour), call(4, 0),
	}}
}

func TestScriptWaits(t *testing.T) {
	var at []time.Duration
	for _, r := range play(t, script(), Options{}, 5*time.Second) {
		at = append(at, r.At/time.Second)
		if r.PromptTokens != 25 || r.OutputTokens != 12 || len(r.Keys) != 2 || len(r.OutKeys) != 1 || r.Model != "m" || !r.NonStreaming || r.Session != 3 {
			t.Fatalf("%+v", r)
		}
	}
	// The first starts two calls a second and three after its end; what is due after the length, and
	// what waits for it, is left out.
	if want := []time.Duration{1, 2, 8, 10}; !slices.Equal(at, want) {
		t.Errorf("calls at %d s, want %d", at, want)
	}
	if n := len(play(t, script(), Options{Requests: 3}, 0)); n != 3 {
		t.Errorf("%d calls of 3", n)
	}
	if n := len(play(t, script(), Options{Duration: 2 * time.Second}, 0)); n != 1 {
		t.Errorf("%d calls in 2 s", n)
	}
	if _, err := script().Source(Options{Speed: 2}); !errors.Is(err, ErrOptions) {
		t.Errorf("speed 2: %v", err)
	}
}

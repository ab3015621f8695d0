package sources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/bubble"
	"grapevine.example/chaos/dnstest"
	"grapevine.example/node/config"
	"grapevine.example/raftstore"
)

func TestReadNames(t *testing.T) {
	dns := dnstest.Start(t)
	dns.Host("e.test", "10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1")
	dns.Host("six.test", "fd00::1")
	records := []net.SRV{{Target: "e.test.", Port: 1}, {Target: "six.test.", Port: 2}}
	dns.Service("_e._tcp.test", records...)
	read := func(entry string) ([]string, error) {
		s, err := newSource(entry)
		if err != nil {
			t.Fatal(err)
		}
		list, _, err := s.read(t.Context())
		var urls []string
		for _, b := range list {
			urls = append(urls, b.URL)
		}
		return urls, err
	}
	if got, err := read("dns:e.test:8000"); err != nil || !slices.Equal(got, []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := read("srv:_e._tcp.test"); err != nil || !slices.Equal(got, []string{"http://10.0.0.1:1", "http://10.0.0.2:1", "http://[fd00::1]:2"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := read("dns:gone.test:8000"); err == nil {
		t.Error("a name without addresses is an answer")
	}
	dns.Service("_e._tcp.test", append(records, net.SRV{Target: "gone.test.", Port: 3})...)
	if _, err := read("srv:_e._tcp.test"); err == nil {
		t.Error("half an answer is one")
	}
	dns.Service("_e._tcp.test")
	if _, err := read("srv:_e._tcp.test"); err == nil {
		t.Error("no record is an answer")
	}
}

type ledgerOf struct {
	t     *testing.T
	state raftstore.State
	log   []string
}

func (l *ledgerOf) take(at time.Time, commands []raftstore.Command) {
	for _, c := range commands {
		switch c := c.(type) {
		case raftstore.AddBackends:
			for _, s := range c.Backends {
				l.log = append(l.log, "add "+s.Name)
				l.state.Backends = append(l.state.Backends, raftstore.Backend{Name: s.Name, URL: s.URL, Weight: s.Weight, Models: s.Models, KVTokens: s.KVTokens, Source: s.Source, Since: at.UnixMilli()})
			}
		case raftstore.SetBackendState:
			for i := range l.state.Backends {
				if b := &l.state.Backends[i]; slices.Contains(c.Names, b.Name) {
					l.log = append(l.log, fmt.Sprint(c.Action, " ", b.Name))
					b.Drained, b.DrainedBy, b.State = c.Action == raftstore.Drain, c.By, raftstore.Active
					if b.Drained {
						b.State = raftstore.Draining
					}
					b.Reason, b.Since = c.Reason, at.UnixMilli()
				}
			}
		case raftstore.UpdateBackend:
			for i := range l.state.Backends {
				if b := &l.state.Backends[i]; b.Name == c.Name {
					l.log = append(l.log, "update "+b.Name)
					if c.Weight != nil {
						b.Weight = *c.Weight
					}
					if c.URL != nil {
						b.URL = *c.URL
					}
				}
			}
		case raftstore.RemoveBackends:
			l.log = append(l.log, "remove "+strings.Join(c.Names, " "))
			l.state.Backends = slices.DeleteFunc(l.state.Backends, func(b raftstore.Backend) bool { return slices.Contains(c.Names, b.Name) })
		default:
			l.t.Fatalf("%T", c)
		}
	}
	slices.SortFunc(l.state.Backends, func(a, b raftstore.Backend) int { return strings.Compare(a.Name, b.Name) })
}

func TestSourcesChangeTheState(t *testing.T) {
	s, err := New([]string{"file:/x", "dns:e:80"}, func(string) bool { return false }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	busy := map[string]bool{}
	s.busy = func(name string) bool { return busy[name] }
	at := time.Unix(1_800_000_000, 0)
	backend := func(name string, weight float64) config.Backend {
		b := config.Backend{URL: "http://" + name, Weight: weight}
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
		return b
	}
	l := &ledgerOf{t: t, state: raftstore.State{Backends: []raftstore.Backend{
		{Name: "mine:1", URL: "http://mine:1", Weight: 1, Source: raftstore.Admin}, {Name: "old:1", URL: "http://old:1", Weight: 1, Source: raftstore.File},
	}}}
	step := func(what string, after time.Duration, want ...string) {
		t.Helper()
		l.log = nil
		for end := at.Add(after); at.Before(end); {
			at = at.Add(time.Second)
			l.take(at, s.changes(&l.state, at))
		}
		if !slices.Equal(l.log, want) {
			t.Errorf("%s: %v, want %v", what, l.log, want)
		}
	}
	step("nobody has answered", time.Minute)
	s.take(0, []config.Backend{backend("a:1", 1), backend("b:1", 1), backend("mine:1", 7)}, false, nil, at)
	step("the file has answered", 3*time.Second, "add a:1", "add b:1", "drain old:1", "remove old:1")
	s.take(1, []config.Backend{backend("n:80", 1), backend("a:1", 5)}, false, nil, at)
	step("the name has answered, with one that the file has", 3*time.Second, "add n:80")
	s.take(0, []config.Backend{backend("a:1", 2), backend("b:1", 1)}, false, nil, at)
	step("another weight", 3*time.Second, "update a:1")
	s.take(0, nil, false, errors.New("no such file"), at)
	s.take(1, nil, false, errors.New("timeout"), at)
	step("both fail", time.Hour)
	if st := s.Status(); st[0].Error == "" || st[0].Backends != 2 || st[1].Error == "" {
		t.Errorf("%+v", st)
	}
	busy["b:1"] = true
	s.take(0, []config.Backend{backend("a:1", 2)}, false, nil, at)
	step("one is gone, with requests running", 30*time.Second, "drain b:1")
	s.take(0, []config.Backend{backend("a:1", 2), backend("b:1", 1)}, false, nil, at)
	step("it is back", 5*time.Second, "resume b:1")
	s.take(0, []config.Backend{backend("a:1", 2)}, false, nil, at)
	step("gone again", 5*time.Second, "drain b:1")
	busy["b:1"] = false
	step("and idle", 5*time.Second, "remove b:1")
	s.take(1, []config.Backend{backend("m:80", 1)}, false, nil, at)
	step("half an answer of the name service", 20*time.Second, "add m:80")
	s.take(1, []config.Backend{backend("m:80", 1), backend("n:80", 1)}, false, nil, at)
	step("a whole one", time.Minute)
	s.take(1, []config.Backend{backend("m:80", 1)}, false, nil, at)
	step("gone for good", time.Minute, "drain n:80", "remove n:80")
	s.take(1, []config.Backend{backend("m:80", 1), backend("o:80", 1)}, false, nil, at)
	step("another", 3*time.Second, "add o:80")
	for i := range l.state.Backends {
		if b := &l.state.Backends[i]; b.Name == "o:80" {
			b.State, b.DownBy, b.Reason = raftstore.Down, raftstore.ByHealth, "health: refused"
		}
	}
	s.take(1, []config.Backend{backend("m:80", 1)}, false, nil, at)
	step("gone, and down: a drain would outlast its return", time.Minute, "remove o:80")
	if _, ok := l.state.Backend("mine:1"); !ok {
		t.Error("what an operator added is gone")
	}
}

func named(t *testing.T, url string, weight float64) config.Backend {
	t.Helper()
	b := config.Backend{URL: "http://" + url, Weight: weight}
	if name, rest, ok := strings.Cut(url, "="); ok {
		b.Name, b.URL = name, "http://"+rest
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSourcesThatContradict(t *testing.T) {
	s, err := New([]string{"file:/first", "file:/second", "dns:e:80"}, func(string) bool { return false }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_800_000_000, 0)
	l := &ledgerOf{t: t}
	step := func(what string, want ...string) {
		t.Helper()
		l.log = nil
		for range 10 {
			at = at.Add(time.Second)
			l.take(at, s.changes(&l.state, at))
		}
		if !slices.Equal(l.log, want) {
			t.Errorf("%s: %v, want %v", what, l.log, want)
		}
	}
	s.take(2, []config.Backend{named(t, "d:80", 1)}, false, nil, at)
	s.take(1, []config.Backend{named(t, "x=a:1", 2), named(t, "y=b:1", 1)}, false, nil, at)
	step("the second is faster", "add x", "add y", "add d:80")
	s.take(0, []config.Backend{named(t, "x=a:2", 1), named(t, "d:80", 3)}, false, nil, at)
	step("the first counts", "update d:80", "update x")
	if b, _ := l.state.Backend("x"); b.URL != "http://a:2" || b.Weight != 1 {
		t.Errorf("%+v", b)
	}
	st := s.Status()
	if st[0].Error != "" || st[1].Error != "x: file:/first, which comes first, has other values" || st[2].Error != "d:80: file:/first, which comes first, has other values" {
		t.Errorf("%+v", st)
	}
	s.take(1, []config.Backend{named(t, "x=a:2", 1), named(t, "z=b:1", 1), named(t, "y=b:1", 1)}, false, nil, at)
	step("one url twice")
	if st := s.Status(); st[1].Error != "z: its url is also that of y" {
		t.Errorf("%+v", st)
	}
	s.take(0, []config.Backend{named(t, "d:80", 3)}, false, nil, at)
	step("the second names it still")
	s.take(2, []config.Backend{named(t, "e:80", 1)}, false, nil, at)
	step("the file names it still", "add e:80")
	s.take(0, []config.Backend{named(t, "f:1", 1)}, false, nil, at)
	at = at.Add(dnsPatience)
	step("nobody does any more", "add f:1", "drain d:80", "remove d:80")
}

func TestWhoDrainedIt(t *testing.T) {
	have := raftstore.Backend{Name: "a:1", URL: "http://a:1", Weight: 1, Source: raftstore.File, Drained: true}
	b := named(t, "a:1", 1)
	for _, c := range []struct {
		by     raftstore.Author
		state  raftstore.BackendState
		reason string
		want   int
	}{
		{raftstore.BySource, raftstore.Draining, Prefix + "no longer listed", 1},
		{raftstore.BySource, raftstore.Down, "health: refused", 1},
		{raftstore.ByOperator, raftstore.Draining, "the rack is being moved", 0},
		{raftstore.ByOperator, raftstore.Down, "health: refused", 0},
		{raftstore.ByOperator, raftstore.Draining, Prefix + "no longer listed", 0},
	} {
		have.DrainedBy, have.State, have.Reason = c.by, c.state, c.reason
		list := changed(&have, &b)
		if len(list) != c.want {
			t.Errorf("%+v: %+v", c, list)
		}
		for _, command := range list {
			if r, ok := command.(raftstore.SetBackendState); !ok || r.Action != raftstore.Resume || r.By != raftstore.BySource {
				t.Errorf("%+v: %+v", c, command)
			}
		}
	}
}

func TestSourceOutlivesSkew(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		s, err := New([]string{"file:/x"}, func(string) bool { return false }, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		busy := true
		s.busy = func(string) bool { return busy }
		at := time.Unix(1_800_000_000, 0)
		s.take(0, []config.Backend{named(t, "a:1", 1)}, false, nil, at)
		l := &ledgerOf{t: t, state: raftstore.State{Backends: []raftstore.Backend{
			{Name: "a:1", URL: "http://a:1", Weight: 1, Source: raftstore.File},
			{Name: "b:1", URL: "http://b:1", Weight: 1, Source: raftstore.File, Drained: true, DrainedBy: raftstore.BySource, State: raftstore.Draining,
				Reason: Prefix + "no longer listed", Since: at.Add(skew).UnixMilli()},
		}}}
		step := func() {
			at = at.Add(time.Second)
			l.take(at, s.changes(&l.state, at))
		}
		for range 60 {
			step()
		}
		if len(l.log) > 0 {
			t.Errorf("skew %v: %v with requests running", skew, l.log)
		}
		busy = false
		step()
		if len(l.log) != 1 {
			t.Errorf("skew %v: %v without requests", skew, l.log)
		}
	}
}

// fakeStore refuses commands about some names.
type fakeStore struct {
	*ledgerOf
	err      error
	refuse   map[string]error
	attempts int // refused commands about a name
	failed   int // with err
}

func (a *fakeStore) Leading() bool { return true }

func (a *fakeStore) State() *raftstore.State {
	state := a.state
	state.Backends = slices.Clone(state.Backends)
	return &state
}

func (a *fakeStore) Apply(_ context.Context, c raftstore.Command) (raftstore.Result, error) {
	if a.err != nil {
		a.failed++
		return raftstore.Result{}, a.err
	}
	for _, name := range namesOf(c) {
		if err := a.refuse[name]; err != nil {
			a.attempts++
			return raftstore.Result{}, err
		}
	}
	a.take(time.Now(), []raftstore.Command{c})
	return raftstore.Result{Changed: true}, nil
}

func TestOneRefusalKeepsOutNoOther(t *testing.T) {
	s, err := New([]string{"file:/x"}, func(string) bool { return false }, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	s.take(0, []config.Backend{named(t, "a:1", 1), named(t, "b:1", 2), named(t, "bad:1", 1)}, false, nil, at)
	store := &fakeStore{
		ledgerOf: &ledgerOf{t: t, state: raftstore.State{Backends: []raftstore.Backend{
			{Name: "b:1", URL: "http://b:1", Weight: 1, Source: raftstore.File}, {Name: "gone:1", URL: "http://gone:1", Weight: 1, Source: raftstore.File},
		}}},
		refuse: map[string]error{"bad:1": raftstore.ErrInvalid, "b:1": fmt.Errorf("wrapped: %w", raftstore.ErrConflict)},
	}
	s.applyOnce(t.Context(), store, at)
	if want := []string{"add a:1", "drain gone:1"}; !slices.Equal(store.log, want) {
		t.Errorf("applied %v, want %v", store.log, want)
	}
	tries := store.attempts
	s.applyOnce(t.Context(), store, at.Add(time.Second))
	if store.attempts > tries {
		t.Errorf("%d refused ones were tried again a second later", store.attempts-tries)
	}
	s.applyOnce(t.Context(), store, at.Add(2*refusalLasts))
	if store.attempts == tries {
		t.Error("never tried again")
	}
	store.err = raftstore.ErrNoLeader
	s.applyOnce(t.Context(), store, at.Add(10*refusalLasts))
	if store.failed != 1 {
		t.Errorf("%d attempts without a leader", store.failed)
	}
}

// TestFileIsFollowed: the leader applies each version of a file, and none of a broken one.
func TestFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backends")
	var turn int64
	write := func(text string) {
		t.Helper()
		turn++
		when := time.Unix(1_700_000_000+turn, 0)
		next := path + ".next"
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Chtimes(next, when, when), os.Rename(next, path)); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "http://a:1", "http://b:1"
	write(first + "\n")
	bubble.Test(t, func(t *testing.T) {
		s, err := New([]string{"file:" + path}, func(string) bool { return false }, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		store := &fakeStore{ledgerOf: &ledgerOf{t: t}}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx, store) })
		expect := func(wrong bool, want ...string) {
			t.Helper()
			time.Sleep(fileEvery + 3*applyEvery)
			synctest.Wait()
			var urls []string
			for _, b := range store.state.Backends {
				urls = append(urls, b.URL)
			}
			if st := s.Status()[0]; !slices.Equal(urls, want) || (st.Error != "") != wrong {
				t.Errorf("backends %v, want %v; status %+v", urls, want, st)
			}
		}
		expect(false, first)
		write("- " + first + "\n- " + second + "\n")
		expect(false, first, second)
		write("- " + first + "\n- nonsense\n")
		expect(true, first, second)
		write("")
		expect(true, first, second)
		write("- " + first + "\n- " + second + "\n")
		expect(false, first, second)
		write(second + "\n")
		expect(false, second)
		cancel()
		running.Wait()
	})
}

func TestEmptySourceStaysWrong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "backends")
	s, err := newSource("file:" + path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"http://a:8000\n", "# none\n", "http://a:8000\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for look := range 3 {
			list, unchanged, err := s.read(t.Context())
			if empty := text[0] == '#'; empty != (err != nil) || !empty && !unchanged && len(list) != 1 {
				t.Errorf("%q, look %d: %v, %v, %v", text, look, list, unchanged, err)
			}
		}
	}
}

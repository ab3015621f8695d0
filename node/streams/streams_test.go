package streams

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"grapevine.example/node/backends"
	"grapevine.example/node/config"
	"grapevine.example/node/health"
	"grapevine.example/prefixtree"
	"grapevine.example/proxy/engine"
	"grapevine.example/proxy/engine/events"
	"grapevine.example/proxy/policy"
)

func TestMain(m *testing.M) {
	if blocks, err := strconv.Atoi(os.Getenv(publisherBlocks)); err == nil {
		if err := publishBurden(blocks); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fake is a vLLM that publishes what a test says, to one subscriber.
type fake struct {
	t    *testing.T
	http *httptest.Server
	pub  net.Listener
	subs chan net.Conn

	mu      sync.Mutex
	sub     net.Conn
	seq     uint64
	sources string // answer at /kv_event_sources; "": 404
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, subs: make(chan net.Conn, 16)}
	var err error
	if f.pub, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	f.sources = fmt.Sprintf(`{"0":{"endpoint":"tcp://*:%d","replay_endpoint":null,"topic":""}}`, f.pub.Addr().(*net.TCPAddr).Port)
	f.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.URL.Path != "/kv_event_sources" || f.sources == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, f.sources)
	}))
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := f.pub.Accept()
			if err != nil {
				return
			}
			switch err := greet(c); {
			case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE): // the follower was closed meanwhile
				_ = c.Close()
				continue
			case err != nil:
				t.Error(err)
			}
			f.mu.Lock()
			if f.sub != nil {
				_ = f.sub.Close()
			}
			f.sub = c
			f.mu.Unlock()
			f.subs <- c
		}
	})
	t.Cleanup(func() {
		_ = f.pub.Close()
		work.Wait()
		f.http.Close()
		if f.sub != nil {
			_ = f.sub.Close()
		}
	})
	return f
}

// greet is ZMTP 3.0 up to the subscription: greeting, READY and one frame.
func greet(c net.Conn) error {
	in := bufio.NewReader(c)
	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	if _, err := c.Write(append(append(greeting, 4, byte(len(ready))), ready...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(in, make([]byte, 64)); err != nil {
		return err
	}
	for range 2 { // READY, subscription
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, in, int64(head[1])); err != nil {
			return err
		}
	}
	return nil
}

// subscribed waits for a subscriber.
func (f *fake) subscribed() {
	f.t.Helper()
	select {
	case <-f.subs:
	case <-time.After(20 * time.Second):
		f.t.Fatal("no subscriber within 20 s")
	}
}

// publish sends a batch of one event in vLLM's older form, an array.
func (f *fake) publish(event []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	batch := append(append([]byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91}, event...), 0)
	if _, err := f.sub.Write(message(f.seq, batch)); err != nil {
		f.t.Error(err)
	}
	f.seq++
}

// message is the three frames of a batch.
func message(seq uint64, batch []byte) []byte {
	msg := binary.BigEndian.AppendUint64([]byte{1, 0, 1, 8}, seq)
	msg = binary.BigEndian.AppendUint32(append(msg, 2, 0, 0, 0, 0), uint32(len(batch)))
	return append(msg, batch...)
}

func text(b []byte, s string) []byte { return append(append(b, 0xd9, byte(len(s))), s...) }

func list(b []byte, hashes ...uint64) []byte {
	b = append(b, 0x90|byte(len(hashes)))
	for _, h := range hashes {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), h)
	}
	return b
}

func storedEvent(session string, hashes ...uint64) []byte {
	b := text(text([]byte{0x85}, "type"), "BlockStored")
	b = list(text(b, "block_hashes"), hashes...)
	b = append(text(b, "token_ids"), 0x90)
	b = append(text(b, "block_size"), 16)
	return text(text(b, "session_id"), session)
}

func removedEvent(hashes ...uint64) []byte {
	return list(text(text(text([]byte{0x82}, "type"), "BlockRemoved"), "block_hashes"), hashes...)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within 20 s", what)
		}
	}
}

// fleet runs the streams of one node, whose peers a test may change.
type fleet struct {
	*Streams
	tree *prefixtree.Tree
	dir  *backends.Directory

	mu    sync.Mutex // guards the fields below
	peers []string
	told  int // drops
}

func (f *fleet) setPeers(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = names
}

func (f *fleet) engine() *backends.Engine { return f.dir.Roster().List[0] }

func (f *fleet) status() Status { return f.Status(f.engine()) }

func newFleet(t *testing.T, f *fake, change func(*Config)) *fleet {
	own := []config.Backend{{URL: f.http.URL, Name: "engine"}}
	if err := own[0].Check(); err != nil {
		t.Fatal(err)
	}
	out := &fleet{}
	var err error
	if out.tree, err = prefixtree.New(prefixtree.Config{Budget: 16 << 20, Changed: func(facts []prefixtree.Fact) {
		out.mu.Lock()
		defer out.mu.Unlock()
		for _, x := range facts {
			if x.Kind == prefixtree.Drop {
				out.told++
			}
		}
	}}); err != nil {
		t.Fatal(err)
	}
	out.dir, err = backends.NewDirectory(backends.Config{
		Own: own, Numbers: backends.NewRegistry(16, func(prefixtree.Backend) bool { return true }, time.Now), Log: zerolog.Nop(),
		Publish: func(_, _ *backends.Roster, _ *policy.View) {}, Reported: func(*backends.Engine, *backends.Load, bool) {}, Nodes: func() int { return 1 },
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Self: "self", Tree: out.tree, Secret: []byte("secret"), BlockBytes: 64, Log: zerolog.Nop(),
		Backends: func() *backends.Directory { return out.dir },
		Peers: func() []string {
			out.mu.Lock()
			defer out.mu.Unlock()
			return out.peers
		},
	}
	if change != nil {
		change(&cfg)
	}
	out.Streams = New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { out.Run(ctx) })
	running.Go(func() { out.Search(ctx) })
	t.Cleanup(func() { stop(); running.Wait(); out.dir.Close() })
	return out
}

func testPrompt(seed uint64, blocks int) *policy.Request {
	q := &policy.Request{}
	for i := range uint64(blocks) {
		q.Hashes = append(q.Hashes, prefixtree.Hash(seed*1000+i+1))
	}
	q.Marks = []prefixtree.Mark{{Hash: prefixtree.Hash(seed * 7777), Bytes: blocks*64 + 10}}
	return q
}

// rankedBefore returns so many names of nodes that come before this one among the followers of the engine.
func rankedBefore(n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		name := fmt.Sprint("peer", i)
		if health.Assigned(prefixtree.BackendKey("engine"), []string{name, "self"}, 1)[0] == name {
			names = append(names, name)
		}
	}
	return names
}

func TestFollowing(t *testing.T) {
	t.Run("first", func(t *testing.T) { testFollowing(t) })
	t.Run("second, and the first does not tell what is gone", func(t *testing.T) { testFollowing(t, rankedBefore(1)...) })
}

func testFollowing(t *testing.T, peers ...string) {
	f := newFake(t)
	s := newFleet(t, f, nil)
	f.subscribed()
	s.setPeers(peers...)
	eventually(t, "followers", func() bool { return len(s.status().Followers) == len(peers)+1 })
	eventually(t, "live stream", func() bool {
		f.publish(removedEvent(99))
		return s.status().Known == Exact
	})
	b, q := s.engine().ID, testPrompt(1, 8)
	stamp, id, where := s.Stamp(nil, b, q, true)
	if where != events.InHeader {
		t.Fatalf("carrier %v, want the header", where)
	}
	// Long ago, so that the placement counts as settled.
	var tr prefixtree.TouchHistory
	s.tree.Record(b, q.Hashes, prefixtree.Time(time.Now().UnixMilli())-5000, &tr)
	f.publish(storedEvent(string(stamp), 1, 2, 3, 4, 5, 6, 7, 8))
	eventually(t, "stored blocks", func() bool { return s.status().Blocks == 8 })
	s.Ended(b, id, engine.Usage{PromptTokens: 8*16 + 3, CachedTokens: 0, OutputTokens: 1})
	if h := s.Held(b, q, 8); h != (policy.Held{Known: true, Tokens: 128}) {
		t.Errorf("held %+v, want all 8 blocks", h)
	}
	f.publish(removedEvent(8, 7, 6, 5))
	var m prefixtree.Matches
	eventually(t, "retraction of the evicted half", func() bool {
		s.tree.Match(&m, q.Hashes, prefixtree.Time(time.Now().UnixMilli()))
		return len(m.Holders()) == 1 && m.Holders()[0].Blocks <= 4
	})
	if h := s.Held(b, q, 8); h.Known && h.Tokens != 64 {
		t.Errorf("held %+v after an eviction, want 64 tokens", h)
	}
	eventually(t, "retraction told to peers", func() bool { // behind what the tree shows
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.told > 0
	})
}

// Requests that the engine computed, and no events of them: the cache is predicted until an event comes.
func TestSilentStream(t *testing.T) {
	f := newFake(t)
	s := newFleet(t, f, nil)
	f.subscribed()
	live := func() {
		t.Helper()
		eventually(t, "live stream", func() bool {
			f.publish(removedEvent(99))
			return s.status().Known == Exact
		})
	}
	live()
	b := s.engine().ID
	stamp, _, _ := s.Stamp(nil, b, testPrompt(1, 8), true)
	f.publish(storedEvent(string(stamp), 1, 2, 3, 4, 5, 6, 7, 8)) // names the block size
	eventually(t, "stored blocks", func() bool { return s.status().Blocks == 8 })
	computed := func(seed uint64, cached int) {
		_, id, _ := s.Stamp(nil, b, testPrompt(seed, 8), true)
		s.Ended(b, id, engine.Usage{PromptTokens: 8*16 + 3, CachedTokens: cached, OutputTokens: 1})
	}
	for seed := range uint64(20) {
		computed(seed+2, 8*16) // such requests store nothing
	}
	if n := s.status().Early; n != 0 {
		t.Fatalf("%d requests owe events, though the engine had all their blocks", n)
	}
	for seed := range uint64(silentAnswers) {
		computed(seed+40, 0)
	}
	eventually(t, "notice of the silence", func() bool {
		st := s.status()
		return st.Known == Predicted && strings.Contains(st.Why, "silent")
	})
	if h := s.Held(b, testPrompt(1, 8), 8); h.Known {
		t.Errorf("%+v is known by a silent stream", h)
	}
	f.subscribed() // again
	live()
}

func TestFollowers(t *testing.T) {
	for _, c := range []struct{ engines, nodes, want int }{
		{1, 1, mostFollowers}, // more than there are: all nodes
		{4, 3, mostFollowers},
		{16, 3, 3},
		{64, 16, 4},
		{2000, 64, leastFollowers},
	} {
		if n := followers(c.engines, c.nodes); n != c.want {
			t.Errorf("%d followers of each of %d engines in a fleet of %d, want %d", n, c.engines, c.nodes, c.want)
		}
	}
}

func TestOnlySomeNodesFollow(t *testing.T) {
	f := newFake(t)
	other := rankedBefore(mostFollowers)
	s := newFleet(t, f, nil)
	s.setPeers(other...)
	eventually(t, "other followers", func() bool {
		st := s.status()
		return st.Known == Reported && len(st.Followers) == mostFollowers && !st.Following
	})
	if _, _, where := s.Stamp(nil, s.engine().ID, testPrompt(1, 2), true); where != events.InHeader {
		t.Error("the request of a node that does not follow the engine has no stamp")
	}
	if h := s.Held(s.engine().ID, testPrompt(1, 2), 2); h.Known {
		t.Errorf("%+v is known without the stream", h)
	}
	s.setPeers(other[:mostFollowers-1]...)
	eventually(t, "this node as the last follower", func() bool { return s.status().Following })
	s.setPeers(other...)
	eventually(t, "the end of the stream", func() bool { return !s.status().Following })
}

func TestEnginesWithoutAStream(t *testing.T) {
	for _, c := range []struct {
		name, sources, why string
		change             func(*Config)
	}{
		{"none", ``, "publishes no cache events", nil},
		{"ranks", `{"0":{"endpoint":"tcp://*:1"},"1":{"endpoint":"tcp://*:2"}}`, "2 ranks", nil},
		{"elsewhere", `{"0":{"endpoint":"tcp://10.0.0.1:1"}}`, "another host", nil},
		{"off", `{"0":{"endpoint":"tcp://*:1"}}`, "events is off", func(c *Config) { c.Off = true }},
		{"one off", `{"0":{"endpoint":"tcp://*:1"}}`, "events is off", func(c *Config) { c.Addresses = map[string]string{"engine": config.EventsOff} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.sources = c.sources
			s := newFleet(t, f, c.change)
			eventually(t, "reason with "+c.why, func() bool {
				st := s.status()
				return st.Known == Predicted && strings.Contains(st.Why, c.why)
			})
			if stamp, _, where := s.Stamp(nil, s.engine().ID, testPrompt(1, 2), true); where != events.NoCarrier || len(stamp) > 0 {
				t.Errorf("stamp %q", stamp)
			}
		})
	}
}

func TestConfiguredAddress(t *testing.T) {
	f := newFake(t)
	f.sources = ""
	s := newFleet(t, f, func(c *Config) {
		c.Off, c.Addresses = true, map[string]string{"engine": "tcp://" + f.pub.Addr().String()}
	})
	if s.Idle() {
		t.Fatal("idle with an address")
	}
	f.subscribed()
	eventually(t, "live stream", func() bool {
		f.publish(removedEvent(99))
		return s.status().Known == Exact
	})
}

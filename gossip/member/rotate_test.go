package member

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func rotate(t *testing.T, l *testNode, op KeyOp, key []byte, n int) []KeyResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := l.RotateKey(ctx, op, key)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	if len(results) != n {
		t.Fatalf("%s: %d answers from %d nodes", op, len(results), n)
	}
	return results
}

type traffic struct {
	said   []atomic.Int64
	breaks atomic.Int64
}

func startTraffic(t *testing.T, nodes []*testNode) *traffic {
	t.Helper()
	f := &traffic{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	f.said = make([]atomic.Int64, len(nodes)*(len(nodes)-1))
	n := 0
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				said := &f.said[n]
				n++
				wg.Go(func() { f.talk(ctx, a, b, said) })
			}
		}
	}
	return f
}

func (f *traffic) talk(ctx context.Context, a, b *testNode, said *atomic.Int64) {
	for ctx.Err() == nil {
		c, err := a.Dial(ctx, b.Self())
		if err != nil {
			continue
		}
		for ctx.Err() == nil && say(c, "still there?") == nil {
			said.Add(1)
			time.Sleep(time.Millisecond)
		}
		_ = c.Close()
		f.breaks.Add(1)
	}
}

func (f *traffic) goesOn(t *testing.T, when string) {
	t.Helper()
	for i := range f.said {
		n := &f.said[i]
		before := n.Load()
		eventually(t, "traffic "+when, func() bool { return n.Load() > before+3 }, func() any { return n.Load() })
	}
}

func TestRotationUnderTraffic(t *testing.T) {
	dir := t.TempDir()
	file := func(i int) string { return filepath.Join(dir, string(rune('a'+i))) }
	nodes := fleet(t, 3, func(i int, cfg *Config) {
		patient(i, cfg)
		lines := "# the fleet's key\n" + base64.StdEncoding.EncodeToString(key(1)) + "\n"
		if err := os.WriteFile(file(i), []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Keys, cfg.KeyringFile = nil, file(i)
	})
	talk := startTraffic(t, nodes)
	talk.goesOn(t, "before")
	old, next := FingerprintOf(key(1)), FingerprintOf(key(2))

	if _, err := nodes[0].RotateKey(context.Background(), KeyUse, key(2)); !errors.Is(err, ErrKeyNotEverywhere) {
		t.Error(err)
	}
	if _, err := nodes[0].RotateKey(context.Background(), KeyRemove, key(1)); !errors.Is(err, ErrKeyInUse) {
		t.Error(err)
	}
	rotate(t, nodes[0], KeyInstall, key(2), 3)
	rotate(t, nodes[1], KeyInstall, key(2), 3)
	talk.goesOn(t, "after install")
	rotate(t, nodes[1], KeyUse, key(2), 3)
	talk.goesOn(t, "after use")
	if n := talk.breaks.Load(); n != 0 {
		t.Errorf("%d streams broke before a key was removed", n)
	}
	for _, r := range rotate(t, nodes[2], KeyRemove, old[:], 3) {
		if len(r.Keys) != 1 || r.Keys[0] != next || !r.Persisted {
			t.Errorf("%+v", r)
		}
	}
	eventually(t, "every stream was opened again", func() bool { return talk.breaks.Load() >= 6 }, func() any { return talk.breaks.Load() })
	talk.goesOn(t, "after removal")
	for i, n := range nodes {
		for _, e := range n.reported() {
			if e.Kind != Joined {
				t.Errorf("lost a member: %+v", e)
			}
		}
		onlyKey(t, n, file(i), key(2))
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != len(nodes) {
		t.Error(left, err)
	}
	cfg := testConfig("old")
	cfg.Join = []string{nodes[0].Self().Addr}
	late := start(t, cfg)
	eventually(t, "the refusal names the key", func() bool {
		e := late.JoinErrors()
		return len(e) == 1 && e[0].Err != nil && strings.Contains(e[0].Err.Error(), "another gossip key")
	}, func() any { return late.JoinErrors() })
	cfg.Self.Name, cfg.Keys = "new", [][]byte{key(2)}
	whole(t, append(nodes, start(t, cfg)))
}

func onlyKey(t *testing.T, n *testNode, file string, want []byte) {
	t.Helper()
	keys, err := readKeyring(file)
	if err != nil || len(keys) != 1 || !bytes.Equal(keys[0], want) {
		t.Errorf("%d keys in the file, %v", len(keys), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if on := n.ring.packets.GetKeys(); len(on) != 1 || !bytes.Equal(on[0], want) {
		t.Error("memberlist has other keys")
	}
}

func TestMixedPrimaries(t *testing.T) {
	fleet(t, 2, func(i int, cfg *Config) {
		cfg.Keys = [][]byte{key(1), key(2)}
		if i == 1 {
			cfg.Keys = [][]byte{key(2), key(1)}
		}
	})
}

func TestRotationOnReadOnlyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "keys")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeKeyring(file, [][]byte{key(1)}); err != nil {
		t.Fatal(err)
	}
	r, err := newRing("a", nil, file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(file)); err != nil { // root may write anywhere else
		t.Fatal(err)
	}
	if err := ringDo(r, KeyInstall, key(2)); err == nil || !strings.Contains(err.Error(), "outlast a restart") {
		t.Error(err)
	}
	if len(r.identity.Load().prints) != 1 || len(r.packets.GetKeys()) != 1 {
		t.Error(r.identity.Load().prints)
	}
}

func ringDo(r *ring, op KeyOp, key []byte) error {
	return r.change(op, key, FingerprintOf(key), Fingerprint{})
}

func TestRing(t *testing.T) {
	keys := [][]byte{key(1), key(2), key(3), key(4)}
	r, err := newRing("a", keys, "")
	if err != nil {
		t.Fatal(err)
	}
	check := func(want ...byte) {
		t.Helper()
		on := r.packets.GetKeys()
		if len(on) != len(want) || len(r.identity.Load().prints) != len(want) {
			t.Fatalf("%d keys, %d, want %d", len(on), len(r.identity.Load().prints), len(want))
		}
		for _, w := range want {
			if !slices.Contains(r.identity.Load().prints, FingerprintOf(key(w))) {
				t.Errorf("key %d is not on the ring", w)
			}
		}
		if !bytes.Equal(on[0], key(want[0])) || r.identity.Load().prints[0] != FingerprintOf(key(want[0])) {
			t.Error("primaries differ")
		}
	}
	check(1, 2, 3, 4)
	if err := ringDo(r, KeyRemove, key(2)); err != nil {
		t.Error(err)
	}
	check(1, 3, 4)
	if err := ringDo(r, KeyRemove, key(2)); err != nil {
		t.Error("again:", err)
	}
	if err := ringDo(r, KeyRemove, key(1)); !errors.Is(err, errPrimaryKey) {
		t.Error(err)
	}
	if err := ringDo(r, KeyUse, key(9)); !errors.Is(err, errNoSuchKey) {
		t.Error(err)
	}
	if err := ringDo(r, KeyUse, key(4)); err != nil {
		t.Error(err)
	}
	check(4, 1, 3)
	for i := byte(10); len(r.identity.Load().prints) < maxKeys; i++ {
		if err := ringDo(r, KeyInstall, key(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ringDo(r, KeyInstall, key(99)); !errors.Is(err, errFullRing) {
		t.Error(err)
	}
	none, err := newRing("a", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := ringDo(none, KeyInstall, key(1)); !errors.Is(err, errNoRing) {
		t.Error(err)
	}
}

func TestRingUnderReaders(t *testing.T) {
	r, err := newRing("a", [][]byte{key(1), key(2), key(3)}, "")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, k := range r.packets.GetKeys() {
				if len(k) != 32 {
					panic("a key that is none")
				}
			}
		}
	})
	for range 50 {
		if err := errors.Join(ringDo(r, KeyRemove, key(2)), ringDo(r, KeyInstall, key(2))); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

func TestKeyringFile(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(key(1))
	for _, tc := range []struct{ text, says string }{
		{"", "no key"},
		{"# only words\n", "no key"},
		{"[]", "no key"},
		{"[1]", "not a JSON list"},
		{"not base64!", "key 1 is not base64"},
		{`["` + good + `","AAAA"]`, "3 bytes"},
		{good + "\n" + good, "twice"},
		{strings.Repeat("AAAA\n", 9), "more than 8"},
	} {
		if _, err := ParseKeys([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q: %v", tc.text, err)
		}
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readKeyring(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if err := os.Truncate(path, maxKeyringFile+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readKeyring(path); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
}

func TestRemovedKeyCannotChangeKeys(t *testing.T) {
	cfg := testConfig("a")
	cfg.Keys = [][]byte{key(1), key(2)}
	n := start(t, cfg)
	r, err := newRing("thief", [][]byte{key(2), key(1)}, "")
	if err != nil {
		t.Fatal(err)
	}
	thief, v := guest(t, n, &secure{ring: r}, alpnKeys, stranger(n, "thief", "127.0.0.1:9"))
	if v.Refusal != "" {
		t.Fatal(v)
	}
	if err := n.rotateOwn(keyRequest{KeyRemove, key(2)}, Fingerprint{}); err != nil {
		t.Fatal(err)
	}
	if err := writeMessage(thief, keyRequest{KeyInstall, key(3)}); err == nil {
		_, _ = io.Copy(io.Discard, thief)
	}
	if keys := n.Keys(); len(keys) != 1 {
		t.Errorf("a removed key has put another one on the ring: %v", keys)
	}
}

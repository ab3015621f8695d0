package member

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
)

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		field Field
		edit  func(cfg *Config)
		says  string
	}{
		{FieldGossipKey, func(cfg *Config) { cfg.Keys = [][]byte{key(2)} }, "another gossip key (" + FingerprintOf(key(1)).String() + " there, " + FingerprintOf(key(2)).String() + " here)"},
		{FieldGossipKey, func(cfg *Config) { cfg.Keys = nil }, "here): give every node the same --gossip-key-file"},
		{FieldSecret, func(cfg *Config) { cfg.Self.KeyID = 0x77aa0000 }, "another secret (key id 1f2e0000 there, 77aa0000 here): give every node the same --secret-file"},
		{FieldBlockBytes, func(cfg *Config) { cfg.Self.BlockBytes = 1024 }, "into blocks of 512 bytes, this node into 1024"},
		{FieldProtocol, func(cfg *Config) { cfg.Self.ProtocolMin, cfg.Self.ProtocolMax = 2, 3 }, "(1 there, 2 to 3 here): upgrade"},
		{FieldCluster, func(cfg *Config) { cfg.Self.Cluster = "other" }, `another cluster ("test" there, "other" here)`},
		{FieldName, func(cfg *Config) { cfg.Self.Name = "first" }, `two nodes are named "first"`},
		{FieldRaftID, func(cfg *Config) { cfg.Self.RaftID = "id-of-first" }, "node second has the raft id of another node that is alive, at first ("},
		{FieldGroup, func(*Config) {}, "another raft group (0000000000000007 there, 0000000000000008 here): two fleets were founded; give one up"},
	} {
		t.Run(string(tc.field), func(t *testing.T) {
			cfg := testConfig("first")
			cfg.Self.RaftID = "id-of-first"
			first := startWith(t, cfg, func(l *List) { l.SetGroup(7) })
			cfg = testConfig("second")
			cfg.Join = []string{first.Self().Addr}
			tc.edit(&cfg)
			second := startWith(t, cfg, func(l *List) {
				if tc.field == FieldGroup {
					l.SetGroup(8)
				}
			})
			var mismatch *MismatchError
			eventually(t, "a refusal at the newcomer", func() bool {
				attempts := second.JoinErrors()
				return len(attempts) == 1 && errors.As(attempts[0].Err, &mismatch) && mismatch.Field == tc.field
			}, func() any { return second.JoinErrors() })
			if text := mismatch.Error(); !strings.Contains(text, tc.says) {
				t.Errorf("at the newcomer: %q lacks %q", text, tc.says)
			}
			eventually(t, "a refusal at the seed", func() bool {
				for _, r := range first.Refusals() {
					if errors.As(r.Err, &mismatch) && mismatch.Field == tc.field {
						return true
					}
				}
				return false
			}, func() any { return first.Refusals() })
			if len(first.Members())+len(second.Members()) != 0 {
				t.Error(first.Members(), second.Members())
			}
			if c, err := second.Dial(context.Background(), first.Self()); !errors.As(err, &mismatch) || mismatch.Field != tc.field {
				t.Error(c, err)
			}
		})
	}
}

func TestDelegatesRefuse(t *testing.T) {
	a := start(t, testConfig("a"))
	cfg := testConfig("b")
	cfg.Self.KeyID++
	b := start(t, cfg)
	if _, err := b.members.Join([]string{"a/" + a.Self().Addr}); err == nil {
		t.Error("joined")
	}
	eventually(t, "a refusal at each", func() bool { return len(a.Refusals()) > 0 && len(b.Refusals()) > 0 },
		func() any { return []any{a.Refusals(), b.Refusals()} })
	if len(a.Members())+len(b.Members()) != 0 {
		t.Error(a.Members(), b.Members())
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(cfg *Config)
		says string
	}{
		{"no key", func(cfg *Config) { cfg.Keys, cfg.Bind = nil, ":0" }, "grapevine keys generate"},
		{"no key on a name", func(cfg *Config) { cfg.Keys, cfg.Bind = nil, "example.net:0" }, "grapevine keys generate"},
		{"short key", func(cfg *Config) { cfg.Keys = [][]byte{make([]byte, 31)} }, "31 bytes"},
		{"two equal keys", func(cfg *Config) { cfg.Keys = [][]byte{key(1), key(1)} }, "twice"},
		{"many keys", func(cfg *Config) {
			cfg.Keys = nil
			for i := range 9 {
				cfg.Keys = append(cfg.Keys, key(byte(i)))
			}
		}, "more than 8"},
		{"keys and file", func(cfg *Config) { cfg.KeyringFile = "keys" }, "one of both"},
		{"no file", func(cfg *Config) { cfg.Keys, cfg.KeyringFile = nil, "/nonexistent/keys" }, "no such file"},
		{"name", func(cfg *Config) { cfg.Self.Name = "a b" }, "node name"},
		{"no name", func(cfg *Config) { cfg.Self.Name = "" }, "needs a name"},
		{"long name", func(cfg *Config) { cfg.Self.Name = strings.Repeat("n", 129) }, "at most 128"},
		{"protocol", func(cfg *Config) { cfg.Self.ProtocolMin = 0 }, "protocol range"},
		{"bind", func(cfg *Config) { cfg.Bind = "7946" }, "gossip address"},
		{"seed", func(cfg *Config) { cfg.Join = []string{"srv:"} }, "join"},
		{"probe", func(cfg *Config) { cfg.ProbeTimeout = defaultProbeInterval }, "probe timeout"},
		{"TLS without certificate", func(cfg *Config) { cfg.TLS = &tls.Config{} }, "no certificate"},
		{"TLS without authority", func(cfg *Config) { cfg.TLS = &tls.Config{Certificates: make([]tls.Certificate, 1)} }, "authority"},
	} {
		cfg := testConfig("a")
		tc.edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	// The total length is checked by Start, once the address is known.
	cfg := testConfig(strings.Repeat("n", 128))
	cfg.Self.Data = strings.Repeat("d", 240) + ":8080"
	cfg.Self.Admin = cfg.Self.Data
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(context.Background()); err == nil || !strings.Contains(err.Error(), "more than 512") {
		t.Error(err)
	}
	if err := l.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// A peer's refusal is read as text for logs, and a hello carries what a later release adds.
func TestRefusalOfAnotherRelease(t *testing.T) {
	l, err := New(testConfig("a"))
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	refused := make(chan error)
	go func() {
		defer func() { _ = near.Close() }()
		_, err := l.greet(near, "127.0.0.1:9", &peerProof{cert: l.ring.identity.Load().leaf.Leaf})
		refused <- err
	}()
	var hello map[string]any
	if err := readMessage(far, &hello); err != nil {
		t.Fatal(err)
	}
	if _, found := hello["later"]; found != (reflect.TypeFor[laterFields]().NumField() > 0) {
		t.Errorf("fields of a later release in %v: %v", hello, found)
	}
	who := l.meta()
	who.Addr = "127.0.0.1:9"
	v := verdict{Refusal: "\x1b[31m" + strings.Repeat("no", maxReason)}
	if err := errors.Join(writeMessage(far, &who), writeMessage(far, v)); err != nil {
		t.Fatal(err)
	}
	err = <-refused
	if !errors.Is(err, ErrRefused) || !isText(err.Error()) || strings.Count(err.Error(), "no") > maxReason/2 {
		t.Error(err)
	}
}

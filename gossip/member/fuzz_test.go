package member

import (
	"bytes"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

func fullCard() card {
	return card{
		Info: Info{
			Name: "node-1.rack_2", Incarnation: 1_760_000_000_000, Addr: "10.0.0.7:7946", Data: "10.0.0.7:8080", Admin: "[fd00::7]:8081",
			Version: "v1.2.3", ProtocolMin: 1, ProtocolMax: 3, Cluster: "east", KeyID: 0x1f2e3d4c, BlockBytes: 512,
			RaftID: "0f1e2d3c-raft_1", RaftVoter: true,
		},
		leaving: true,
		keys:    []Fingerprint{{1}, {2}},
		group:   0x1234,
	}
}

func TestCard(t *testing.T) {
	want := fullCard()
	b, err := appendCard([]byte("before"), &want)
	if err != nil {
		t.Fatal(err)
	}
	b = b[len("before"):]
	got, err := decodeCard(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	// A later release adds a field.
	got, err = decodeCard(append(bytes.Clone(b), 200, 3, 'n', 'e', 'w'))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	// An earlier release has no raft fields, and a later one extends them.
	early := want
	early.RaftID, early.RaftVoter, early.group = "", false, 0
	b2, err := appendCard(nil, &early)
	if err != nil || len(b2) >= len(b) {
		t.Fatalf("%d bytes of %d, %v", len(b2), len(b), err)
	}
	if got, err = decodeCard(b2); err != nil || !reflect.DeepEqual(got, early) {
		t.Errorf("%+v, %v", got, err)
	}
	early.RaftVoter = true
	if got, err = decodeCard(append(b2, tagRaftVote, 2, 1, 77)); err != nil || !reflect.DeepEqual(got, early) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range b {
		if got, err := decodeCard(b[:n]); err == nil && !strings.HasPrefix(got.Name, "node") {
			t.Errorf("%d bytes are enough: %+v", n, got)
		}
	}
	for _, bad := range [][]byte{
		nil, {}, {2}, {0}, make([]byte, maxCard+1),
		append(bytes.Clone(b), tagName, 1, 'x'),
		append(bytes.Clone(b), 200, 9, 'c', 'u', 't'),
		append([]byte{infoFormat}, tagIncarnation, 1, 0),
		append([]byte{infoFormat}, tagName, 1, 'x'),
		append(bytes.Clone(b2), tagRaftVote, 0),
		append(bytes.Clone(b2), tagGroup, 1, 3),
		bytes.Replace(b, []byte("7:7946"), []byte("7:x946"), 1),
		bytes.Replace(b, []byte("raft_1"), []byte("raft 1"), 1),
		bytes.Replace(b, []byte("rack_2"), []byte("rack 2"), 1),
		bytes.Replace(b, []byte("v1.2.3"), []byte("v1\x1b[m"), 1),
	} {
		if _, err := decodeCard(bad); !errors.Is(err, errInfo) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzCard(f *testing.F) {
	c := fullCard()
	b, err := appendCard(nil, &c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:20])
	f.Add([]byte{infoFormat, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		tb := newTable(func() Info { return fullCard().Info })
		c, err := decodeCard(b)
		n := &memberlist.Node{Name: c.Name, Addr: net.IP{10, 0, 0, 1}, Port: 1, Meta: b}
		if _, bad := tb.admit(n); bad == nil {
			tb.alive(n)
			tb.gone(n.Name)
		}
		_ = tb.events()
		if err != nil {
			return
		}
		again, err := appendCard(nil, &c)
		if err != nil {
			return
		}
		if back, err := decodeCard(again); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%+v became %+v, %v", c, back, err)
		}
	})
}

func FuzzHello(f *testing.F) {
	c := fullCard()
	b, err := appendHello(nil, &c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(appendVerdict(bytes.Clone(b), verdictName, "10.0.0.8:7946"))
	f.Add([]byte(helloMagic + "\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if _, err := readHello(r); err != nil {
			return
		}
		if v, text, err := readVerdict(r); err == nil {
			back, same, err := readVerdict(bytes.NewReader(appendVerdict(nil, v, text)))
			if err != nil || back != v || same != text || !isText(text) || len(text) > maxReason {
				t.Errorf("%d %q became %d %q, %v", v, text, back, same, err)
			}
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add(appendKeyRequest(nil, KeyInstall, key(1)))
	f.Add(appendKeyReply(nil, []KeyInfo{{Fingerprint{1}, true}, {Fingerprint{2}, false}}, true, nil))
	f.Add(appendKeyReply(nil, nil, false, errNoRing))
	f.Add([]byte(`["AQEBAQEBAQEBAQEBAQEBAQ=="]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if op, k, err := readKeyRequest(bytes.NewReader(b)); err == nil {
			if _, err := checkKeyRequest(op, k); err == nil && len(k) > 32 {
				t.Errorf("a key of %d bytes", len(k))
			}
			op2, k2, err := readKeyRequest(bytes.NewReader(appendKeyRequest(nil, op, k)))
			if err != nil || op2 != op || !bytes.Equal(k, k2) {
				t.Error(op2, k2, err)
			}
		}
		if keys, _, _ := readKeyReply(bytes.NewReader(b)); len(keys) > maxKeys {
			t.Errorf("%d keys", len(keys))
		}
		if keys, err := ParseKeys(b); err == nil && checkKeys(keys) != nil {
			t.Error("a ring that is none")
		}
	})
}

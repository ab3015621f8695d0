package member

import (
	"bytes"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

func fullMeta() meta {
	return meta{
		Info: Info{
			Name: "node-1.rack_2", Incarnation: 1_760_000_000_000, Addr: "10.0.0.7:7946", Data: "10.0.0.7:8080", Admin: "[fd00::7]:8081",
			Version: "v1.2.3", ProtocolMin: 1, ProtocolMax: 3, Cluster: "east", KeyID: 0x1f2e3d4c, BlockBytes: 512,
			RaftID: "0f1e2d3c-raft_1", RaftVoter: true, NoEvents: true,
		},
		Leaving: true,
		Keys:    []Fingerprint{{1}, {2}},
		Group:   0x1234,
	}
}

func TestMeta(t *testing.T) {
	want := fullMeta()
	b, err := want.encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeMeta(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	// A later release adds a field.
	with := func(fields string) []byte {
		return append(bytes.TrimSuffix(bytes.Clone(b), []byte("}")), ","+fields+"}"...)
	}
	got, err = decodeMeta(with(`"new":[1]`))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range b {
		if got, err := decodeMeta(b[:n]); err == nil {
			t.Errorf("%d bytes are enough: %+v", n, got)
		}
	}
	for _, bad := range [][]byte{
		nil, {}, []byte("{}"), []byte("null"), make([]byte, maxHello+1), append(bytes.Clone(b), '{'),
		with(`"i":-1`), with(`"p":256`), with(`"p":4`), with(`"r":7`), with(`"f":["short"]`), with(`"n":""`),
		with(`"f":["` + strings.Repeat(`0000000000000000","`, maxKeys) + `0000000000000000"]`),
		bytes.Replace(b, []byte("7:7946"), []byte("7:x946"), 1),
		bytes.Replace(b, []byte("raft_1"), []byte("raft 1"), 1),
		bytes.Replace(b, []byte("rack_2"), []byte("rack 2"), 1),
		bytes.Replace(b, []byte("v1.2.3"), []byte("v1\u001b"), 1),
	} {
		if _, err := decodeMeta(bad); !errors.Is(err, errInfo) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzMeta(f *testing.F) {
	c := fullMeta()
	b, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:20])
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tb := newTable(func() Info { return fullMeta().Info })
		c, err := decodeMeta(b)
		n := &memberlist.Node{Name: c.Name, Addr: net.IP{10, 0, 0, 1}, Port: 1, Meta: b}
		if _, bad := tb.admit(n); bad == nil {
			tb.alive(n)
			tb.gone(n.Name)
		}
		_ = tb.events()
		if err != nil {
			return
		}
		again, err := c.encode()
		if err != nil {
			return
		}
		back, err := decodeMeta(again)
		if err != nil || back.Info != c.Info || back.Leaving != c.Leaving || back.Group != c.Group || !slices.Equal(back.Keys, c.Keys) {
			t.Errorf("%+v became %+v, %v", c, back, err)
		}
	})
}

func message(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := writeMessage(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func FuzzMessages(f *testing.F) {
	c := fullMeta()
	f.Add(message(f, &c))
	f.Add(message(f, verdict{Refusal: "no", Taken: FieldName, Holder: "10.0.0.8:7946"}))
	f.Add(message(f, keyRequest{KeyInstall, key(1)}))
	f.Add(message(f, keyReply{Keys: []Fingerprint{{1}, {2}}, Persisted: true}))
	f.Add([]byte("\xff\xff{}"))
	f.Add([]byte(`["AQEBAQEBAQEBAQEBAQEBAQ=="]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := readHello(bytes.NewReader(b)); err == nil && (c.Name == "" || c.Addr == "" || len(c.Keys) > maxKeys) {
			t.Errorf("%+v", c)
		}
		var q keyRequest
		if err := readMessage(bytes.NewReader(b), &q); err == nil {
			if _, err := q.check(); err == nil && len(q.Key) > 32 {
				t.Errorf("a key of %d bytes", len(q.Key))
			}
		}
		if keys, err := ParseKeys(b); err == nil && checkKeys(keys) != nil {
			t.Error("ParseKeys accepts an invalid ring")
		}
	})
}

package raftstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func readCloser(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

func commands() []Command {
	return []Command{
		AddBackends{[]Backend{backend("a"), {
			Name: "b", URL: "https://b.test", Models: []string{"m", "n"}, Weight: 2.5, KVTokens: 1 << 40, Source: DNS,
		}}},
		UpdateBackend{Name: "a"},
		UpdateBackend{
			Name: "a", IfVersion: ptr(uint64(7)), URL: ptr("http://x"), Models: ptr([]string{"q"}),
			Weight: ptr(0.5), KVTokens: ptr(int64(9)), Source: ptr(File),
		},
		AddBackends{[]Backend{{Name: "p", URL: "http://p.test", Role: Prefill, BootstrapPort: 8998}}},
		UpdateBackend{Name: "a", Role: ptr(Both), BootstrapPort: ptr(uint16(0))},
		AddBackends{[]Backend{{Name: "l", URL: "http://l.test", Labels: []string{"version=2", "zone=a"}}}},
		UpdateBackend{Name: "a", Labels: ptr([]string{"zone=b"})},
		SetBackendState{Names: []string{"a", "b"}, Action: MarkDown, Reason: "3 of 3 probes failed"},
		SetBackendState{Names: []string{"a", "b"}, Action: MarkUp, Reason: "they answer", By: ByHealth, IfVersions: []uint64{1 << 60, 0}},
		SetBackendState{Names: []string{"a"}, Action: Drain, By: BySource},
		NewGeneration{Name: "a", From: 3},
		RemoveBackends{[]string{"a"}},
		SetRules{Text: "rules:\n- a\n", IfVersion: ptr(uint64(0))},
		SetRules{},
		SetRules{Text: "rules:\n- a\n", Targets: true},
		SetHot{[]HotChange{{Anchor: 1 << 63, Depth: 8192, R: 4, Expires: 1 << 41}, {Anchor: 2, Remove: true}}},
		SetSwitches{Switches{Hot: true}},
		SetConstants{Constants{KeyID: 1 << 31, BlockBytes: 512, Cluster: "prod"}},
	}
}

func TestCommandsRoundTrip(t *testing.T) {
	for _, c := range commands() {
		e := entry{request: requestID{1, 2, 3}, at: 1763683200000, command: c}
		got, err := decodeEntry(e.encode())
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v came back as %+v, %v", e, got, err)
		}
		raw := e.encode()
		for n := range raw {
			// A length prefix reveals cut text.
			if _, err := decodeEntry(raw[:n]); err == nil {
				t.Errorf("%T cut to %d of %d bytes is read", c, n, len(raw))
			}
		}
		if _, err := decodeEntry(append(raw, 0)); err == nil {
			t.Errorf("%T with a byte too many is read", c)
		}
	}
}

// testdata/format1.txt has the log of a program that knew no roles, and the snapshot after it, in hex.
// A fleet that uses no roles still writes the same bytes, so that such programs can follow.
func TestBytesFromBeforeRoles(t *testing.T) {
	text, err := os.ReadFile("testdata/format1.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine()
	var index uint64
	for line := range strings.Lines(string(text)) {
		kind, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		raw, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		if kind == "snapshot" {
			if !bytes.Equal(m.snapshot(), raw) {
				t.Errorf("the snapshot is % x, want % x", m.snapshot(), raw)
			}
			if m, err = restoreMachine(raw); err != nil {
				t.Fatal(err)
			}
			break
		}
		index++
		e, err := decodeEntry(raw)
		if err != nil {
			t.Fatalf("entry %d: %v", index, err)
		}
		if again := e.encode(); !bytes.Equal(again, raw) {
			t.Errorf("entry %d is written as % x, want % x", index, again, raw)
		}
		m.apply(index, e)
	}
	if got := m.backends; index != 13 || len(got) != 1 || got[0].Role != Both || got[0].BootstrapPort != 0 {
		t.Errorf("%d entries and backends %+v", index, got)
	}
	m.run(100, AddBackends{[]Backend{{Name: "p", URL: "http://p.test", Role: Prefill}}})
	raw := m.snapshot()
	if again, err := restoreMachine(raw); err != nil || raw[len(snapshotMagic)] != 2 || again.backends[1].Role != Prefill {
		t.Errorf("with a role: format %d, %v", raw[len(snapshotMagic)], err)
	}
}

// Labels and rules with targets make a format that older programs refuse instead of misreading them; without them the older ones
// can follow again.
func TestFormatOfTargets(t *testing.T) {
	m := newMachine()
	index := uint64(0)
	run := func(c Command, want, snapshot byte) {
		t.Helper()
		index++
		raw := entry{command: c}.encode()
		e, err := decodeEntry(raw)
		if err != nil || raw[0] != want {
			t.Fatalf("%+v has format %d, want %d: %v", c, raw[0], want, err)
		}
		if o := m.apply(index, e); o.Refuse != nil {
			t.Fatal(o.Refuse)
		}
		text := m.snapshot()
		again, err := restoreMachine(text)
		if err != nil || text[len(snapshotMagic)] != snapshot {
			t.Fatalf("after %+v the snapshot has format %d, want %d: %v", c, text[len(snapshotMagic)], snapshot, err)
		}
		if !reflect.DeepEqual(again.state(), m.state()) {
			t.Errorf("after %+v the snapshot restores %+v, want %+v", c, again.state(), m.state())
		}
		m.outcomes, m.order = make(map[requestID]outcome), nil // the entries have no ids
	}
	run(add("a"), 1, 1)
	run(UpdateBackend{Name: "a", Labels: ptr([]string{"version=2", "zone=a"})}, 3, 3)
	run(UpdateBackend{Name: "a", Weight: ptr(2.0)}, 1, 3)
	run(SetRules{Text: "rules: [{pool: [zone=a]}]", Targets: true}, 3, 3)
	run(UpdateBackend{Name: "a", Labels: ptr([]string(nil))}, 3, 3)
	run(SetRules{Text: "rules: [{strategy: random}]"}, 1, 1)
	run(AddBackends{[]Backend{{Name: "l", URL: "http://l.test", Labels: []string{"zone=a"}}}}, 3, 3)
}

func FuzzCommand(f *testing.F) {
	for _, c := range commands() {
		f.Add(entry{command: c}.encode())
	}
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0x1f})
	f.Add(entry{command: SetBackendState{Names: []string{"a", "b"}, IfVersions: []uint64{1}}}.encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := decodeEntry(raw)
		if err != nil {
			return
		}
		again, err := decodeEntry(e.encode())
		if err != nil {
			t.Fatalf("%+v cannot be read back: %v", e, err)
		}
		if !bytes.Equal(again.encode(), e.encode()) {
			t.Errorf("%+v came back as %+v", e, again)
		}
		m := newMachine()
		m.run(1, add("a", "b"))
		m.apply(2, e)
	})
}

func TestClaimsAllocateNothing(t *testing.T) {
	claim := binary.AppendUvarint(nil, 1<<40)
	command := encode(nil, entryHeader{Format: newestFormat, Kind: 1})
	state := encode(append([]byte(snapshotMagic), newestFormat), snapshotBody{})
	state = append(state[:len(state)-3], claim...) // instead of the backends
	state = binary.BigEndian.AppendUint32(state, crc32.Checksum(state, castagnoli))
	for name, read := range map[string]func() error{
		"command":  func() error { _, err := decodeEntry(append(command, claim...)); return err },
		"snapshot": func() error { _, err := restoreMachine(state); return err },
		"frame": func() error {
			_, _, err := readFrame(bytes.NewReader(binary.BigEndian.AppendUint32([]byte{1}, maxRequestBytes)), maxRequestBytes)
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := read()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: a claim without anything behind it is believed", name)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 256<<10 {
			t.Errorf("%s: %d bytes were allocated for a claim", name, n)
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	m := newMachine()
	f.Add(m.snapshot())
	for i, c := range commands() {
		m.run(uint64(i+1), c)
		f.Add(m.snapshot())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) >= crc32.Size {
			// Correct the checksum, so that the fuzzer gets further.
			body := raw[:len(raw)-crc32.Size]
			raw = binary.BigEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
		}
		m, err := restoreMachine(raw)
		if err != nil {
			return
		}
		if again, err := restoreMachine(m.snapshot()); err != nil || !bytes.Equal(again.snapshot(), m.snapshot()) {
			t.Fatalf("a machine that was read cannot be read back: %v", err)
		}
		for i, c := range commands() {
			m.run(uint64(1000+i), c)
		}
	})
}

func (h hello) frame() []byte {
	var b bytes.Buffer
	_ = writeFrame(&b, helloFormat, encode(nil, h)) // a buffer takes all
	return b.Bytes()
}

func FuzzHello(f *testing.F) {
	f.Add(hello{Use: useRaft, Group: groupID{1}, To: "a", ID: "b", Addr: "127.0.0.1:1"}.frame())
	f.Add(hello{Use: useRequests}.frame())
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := readHello(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if again, err := readHello(bytes.NewReader(h.frame())); err != nil || again != h {
			t.Errorf("%+v came back as %+v, %v", h, again, err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 3, 'a', 'b', 'c'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		what, body, err := readFrame(bytes.NewReader(raw), maxRequestBytes)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := writeFrame(&out, what, body); err != nil || !bytes.HasPrefix(raw, out.Bytes()) {
			t.Errorf("% x was read and written as % x", raw, out.Bytes())
		}
	})
}

func TestLogRecordsRoundTrip(t *testing.T) {
	l := raft.Log{Index: 7, Term: 3, Type: raft.LogConfiguration, Data: []byte("data"), Extensions: []byte("x")}
	key := logKey(l.Index)
	record := encodeLog(key, &l)
	var got raft.Log
	if err := decodeLog(key, record, &got); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("%+v came back as %+v, %v", l, got, err)
	}
	for i := range record {
		damaged := bytes.Clone(record)
		damaged[i] ^= 1
		if err := decodeLog(key, damaged, &got); err == nil {
			t.Errorf("damage of byte %d is not noticed", i)
		}
	}
	if err := decodeLog(logKey(8), record, &got); err == nil {
		t.Error("a record under another index is not noticed")
	}
}

func fullMachine(backends int) *machine {
	m := newMachine()
	var list []Backend
	for i := range backends {
		list = append(list, Backend{
			Name: fmt.Sprintf("rack%02d-host%02d-gpu%d", i/64, i/8%8, i%8), URL: fmt.Sprintf("http://10.%d.%d.%d:8000", i/4096, i/64%64, i%64),
			Models: []string{"meta-llama/Llama-4-Maverick-17B-128E-Instruct"},
			Weight: 1, KVTokens: 1_500_000, Source: File,
		})
	}
	m.run(1, AddBackends{list})
	for i := range uint64(maxOutcomes) {
		m.run(2+i, SetSwitches{Switches{Hot: true}})
	}
	for i := range uint64(256) {
		m.run(1<<20+i, SetHot{[]HotChange{{Anchor: i << 40, Depth: 8192, R: 4, Expires: 1763683200000}}})
	}
	return m
}

func TestSnapshotOfALargeFleet(t *testing.T) {
	size := len(fullMachine(2000).snapshot())
	t.Logf("2,000 backends, 256 hot prefixes, %d outcomes: %d bytes", maxOutcomes, size)
	if size > 1<<20 {
		t.Errorf("snapshot has %d bytes", size)
	}
}

func BenchmarkState(b *testing.B) {
	for _, n := range []int{64, 2000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			m := fullMachine(n)
			b.ReportAllocs()
			for b.Loop() {
				m.state()
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	m := fullMachine(2000)
	raw := m.snapshot()
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		b.ReportMetric(float64(len(raw)), "bytes")
		for b.Loop() {
			m.snapshot()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := restoreMachine(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// An older program does not guess what a newer one's values mean.
func TestUnknownValuesAreRefused(t *testing.T) {
	for _, c := range []Command{
		SetBackendState{Names: []string{"a"}, Action: MarkUp + 1},
		SetBackendState{Names: []string{"a"}, By: ByHealth + 1},
		UpdateBackend{Name: "a", Source: ptr(Admin + 1)},
		AddBackends{[]Backend{{Name: "a", Source: Admin + 1}}},
	} {
		if _, err := decodeEntry(entry{command: c}.encode()); err == nil {
			t.Errorf("%+v is read", c)
		}
	}
	for name, edit := range map[string]func(*machine){
		"state":        func(m *machine) { m.backends[0].State = Down + 1 },
		"author":       func(m *machine) { m.backends[0].DownBy = ByHealth + 1 },
		"equal names":  func(m *machine) { m.backends[1].Name = "a" },
		"wrong order":  func(m *machine) { m.backends[0].Name = "c" },
		"equal urls":   func(m *machine) { m.backends[1].URL = m.backends[0].URL },
		"equal hot":    func(m *machine) { m.hot = []HotPrefix{{Anchor: 1}, {Anchor: 1}} },
		"too many hot": func(m *machine) { m.hot = make([]HotPrefix, MaxHot+1); number(m.hot) },
		"too many": func(m *machine) {
			for i := range MaxBackends {
				m.backends = append(m.backends, backend(fmt.Sprintf("n%06d", i)))
			}
		},
	} {
		m := newMachine()
		m.run(1, add("a", "b"))
		edit(m)
		if _, err := restoreMachine(m.snapshot()); err == nil {
			t.Errorf("%s: the snapshot is read", name)
		}
	}
}

func number(hot []HotPrefix) {
	for i := range hot {
		hot[i].Anchor = uint64(i)
	}
}

package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"
)

func one(t *testing.T, b []byte, want Kind) []byte {
	t.Helper()
	r := NewReader(bytes.NewReader(b), NewsSize)
	k, body, size, err := r.Next()
	if err != nil || k != want {
		t.Fatalf("%v, %v; want %v", k, err, want)
	}
	body = bytes.Clone(body)
	if _, _, _, err := r.Next(); err != io.EOF {
		t.Fatalf("after the frame: %v", err)
	}
	if size != len(b) && r.Skipped() == 0 { // the newer build adds frames that are skipped
		t.Fatalf("%v of %d bytes; want %d", k, size, len(b))
	}
	return body
}

func equal(t *testing.T, got, want any, err error) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestFramesComeBackAsTheyWere(t *testing.T) {
	sub := Resume{Version: 1, Incarnation: 1 << 50, Next: 12345}
	got, err := DecodeResume(one(t, AppendResume(nil, KindSubscribe, sub), KindSubscribe))
	equal(t, got, sub, err)

	start := Resume{Version: 1, Incarnation: 7, Next: 1}
	gotStart, err := DecodeResume(one(t, AppendResume(nil, KindStart, start), KindStart))
	equal(t, gotStart, start, err)

	sent, err := DecodePing(one(t, AppendPing(nil, -5), KindPing))
	equal(t, sent, int64(-5), err)

	pong := Pong{Sent: math.MinInt64, Received: 1 << 60, Replied: 1<<60 + 999}
	gotPong, err := DecodePong(one(t, AppendPong(nil, pong), KindPong))
	equal(t, gotPong, pong, err)

	for _, size := range []int{0, 1, 100, 127, 128, 1000, 16384, MaxPayload} {
		b := Batch{Sequence: 1 << 40, Time: 1795231982067, Records: 99, Payload: bytes.Repeat([]byte{7}, size)}
		body := b.AppendBody(nil)
		gotBatch, err := DecodeBatch(one(t, AppendBatch(nil, body), KindBatch))
		equal(t, gotBatch, b, err)
	}

	var loads []Load
	for i := range uint32(1000) {
		loads = append(loads, Load{Backend: i * 0x9e3779b9, PrefillTokens: i * i, Active: i})
	}
	gotLoads, at, full, err := DecodeLoad(nil, one(t, AppendLoad(nil, 1795231982067, true, loads), KindLoad))
	equal(t, gotLoads, loads, err)
	if at != 1795231982067 || !full {
		t.Errorf("time %d, full %v", at, full)
	}
	uses := []Usage{{Client: 1 << 31, Tokens: 1<<32 - 1, InFlight: 7}, {Client: 2}}
	gotUses, at, full, err := DecodeUsage(nil, one(t, AppendUsage(nil, 1795231982068, false, uses), KindUsage))
	equal(t, gotUses, uses, err)
	if at != 1795231982068 || full {
		t.Errorf("time %d, full %v", at, full)
	}

	figures := []Figure{{Key: 1 << 31, Low: 1<<32 - 1, High: 7}, {Key: 2}}
	gotFigures, at, full, err := DecodeFigures(nil, one(t, AppendFigures(nil, 1795231982069, true, figures), KindFigures))
	equal(t, gotFigures, figures, err)
	if at != 1795231982069 || !full {
		t.Errorf("time %d, full %v", at, full)
	}

	at, state, err := DecodeState(one(t, AppendState(nil, 5, []byte("state")), KindState))
	equal(t, string(state), "state", err)
	equal(t, at, int64(5), err)

	request, err := DecodeRequest(one(t, AppendRequest(nil, KindSnapshot, 300), KindSnapshot))
	equal(t, request, uint64(300), err)
	request, err = DecodeRequest(one(t, AppendRequest(nil, KindCancel, 300), KindCancel))
	equal(t, request, uint64(300), err)
	positions := []Position{{[]byte("node-1.example"), 1 << 50, 12345}, {[]byte("a"), 1, 1}}
	request, records, gotPositions, err := DecodeSnapshotHead(one(t, AppendSnapshotHead(nil, 300, 1<<30, positions), KindSnapshotHead))
	equal(t, []uint64{request, records}, []uint64{300, 1 << 30}, err)
	equal(t, gotPositions, positions, err)
	_, _, gotPositions, err = DecodeSnapshotHead(one(t, AppendSnapshotHead(nil, 1, 1, slices.Repeat(positions, MaxPositions)), KindSnapshotHead))
	equal(t, len(gotPositions), MaxPositions, err)
	request, n, page, err := DecodePage(one(t, AppendPage(nil, 300, 77, []byte("page")), KindPage))
	equal(t, []any{request, n, string(page)}, []any{uint64(300), 77, "page"}, err)
	request, how, err := DecodeSnapshotDone(one(t, AppendSnapshotDone(nil, 300, Busy), KindSnapshotDone))
	equal(t, []any{request, how}, []any{uint64(300), Busy}, err)
}

func TestReaderCutsFramesHoweverTheyCome(t *testing.T) {
	var stream []byte
	var want []int
	for i := range 300 {
		size := i * i % 40_000
		stream = AppendState(stream, int64(i), make([]byte, size))
		want = append(want, size)
		if i%50 == 7 {
			stream = append(append(stream, 0x6a, 0, 0x03, 0xe8), make([]byte, 1000)...)
		}
	}
	stream = AppendState(stream, 1, make([]byte, MaxState))
	want = append(want, MaxState)
	for name, src := range map[string]io.Reader{
		"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"in halves": iotest.HalfReader(bytes.NewReader(stream)), "with the end": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		r := NewReader(src, RequestSize)
		var got []int
		for {
			_, body, _, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			_, state, err := DecodeState(body)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got = append(got, len(state))
		}
		if !slices.Equal(got, want) || r.Skipped() != 6 {
			t.Errorf("%s: %d frames of %d, %d skipped", name, len(got), len(want), r.Skipped())
		}
	}
	r := NewReader(bytes.NewReader(stream[:len(stream)-1]), NewsSize)
	for {
		_, _, _, err := r.Next()
		if err == nil {
			continue
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a frame cut short: %v", err)
		}
		break
	}
}

func TestReaderGrowsWithWhatCameNotWithWhatWasAnnounced(t *testing.T) {
	frame := AppendState(nil, 1, make([]byte, MaxState))
	r := NewReader(bytes.NewReader(frame[:200]), NewsSize)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<10 {
		t.Errorf("%d bytes allocated for 200 that came", n)
	}
}

func TestReaderRefusesWhatIsTooLong(t *testing.T) {
	for _, b := range [][]byte{
		{byte(KindPing), 0, 4, 1},
		{byte(KindBatch), 0xff, 0xff, 0xff},
		{0x7e, 0x10, 0, 1},
	} {
		r := NewReader(bytes.NewReader(b), NewsSize)
		if _, _, _, err := r.Next(); !errors.Is(err, ErrMalformed) {
			t.Errorf("% x: %v", b, err)
		}
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	b := Batch{Sequence: 1, Time: 1, Records: 10, Payload: make([]byte, 1000)}
	stream := bytes.Repeat(AppendBatch(nil, b.AppendBody(nil)), 100)
	src := bytes.NewReader(stream)
	r := NewReader(src, NewsSize)
	if n := testing.AllocsPerRun(100, func() {
		src.Reset(stream)
		for range 100 {
			k, body, _, err := r.Next()
			if err != nil || k != KindBatch {
				t.Fatal(k, err)
			}
			if _, err := DecodeBatch(body); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations per 100 frames", n)
	}
}

func TestDecodersSurviveEveryCut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, f := range seeds() {
		for cut := range len(f) {
			decodeAll(f[:cut])
		}
		for range 200 {
			b := bytes.Clone(f)
			b[rnd.IntN(len(b))] ^= byte(1 << rnd.IntN(8))
			decodeAll(b)
		}
	}
}

package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"
)

// one reads the only frame of b.
func one(t *testing.T, b []byte, want Kind) []byte {
	t.Helper()
	r := NewReader(bytes.NewReader(b), NewsSize)
	k, body, size, err := r.Next()
	if err != nil || k != want || size != len(b) {
		t.Fatalf("%v of %d bytes, %v; want %v of %d", k, size, err, want, len(b))
	}
	body = bytes.Clone(body)
	if _, _, _, err := r.Next(); err != io.EOF {
		t.Fatalf("after the frame: %v", err)
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
	sub := Subscribe{Version: 1, Incarnation: 1 << 50, Next: 12345}
	got, err := DecodeSubscribe(one(t, AppendSubscribe(nil, sub), KindSubscribe))
	equal(t, got, sub, err)

	start := Start{Version: 1, Incarnation: 7, Next: 1}
	gotStart, err := DecodeStart(one(t, AppendStart(nil, start), KindStart))
	equal(t, gotStart, start, err)

	sent, err := DecodePing(one(t, AppendPing(nil, -5), KindPing))
	equal(t, sent, int64(-5), err)

	pong := Pong{Sent: math.MinInt64, Received: 1 << 60, Replied: 1<<60 + 999, Next: 3}
	gotPong, err := DecodePong(one(t, AppendPong(nil, pong), KindPong))
	equal(t, gotPong, pong, err)

	rng := Range{Request: 9, Origin: []byte("node-1.example"), Incarnation: 5, From: 100, Count: MaxRange}
	gotRange, err := DecodeRange(one(t, AppendRange(nil, rng), KindRange))
	equal(t, gotRange, rng, err)

	request, next, err := DecodeRangeDone(one(t, AppendRangeDone(nil, 9, 400), KindRangeDone))
	equal(t, []uint64{request, next}, []uint64{9, 400}, err)

	for _, size := range []int{0, 1, 100, 127, 128, 1000, 16384, MaxPayload} {
		b := Batch{Sequence: 1 << 40, Time: 1795231982067, Records: 99, Payload: bytes.Repeat([]byte{7}, size)}
		body := b.AppendBody(nil)
		gotBatch, err := DecodeBatch(one(t, AppendBatch(nil, body), KindBatch))
		equal(t, gotBatch, b, err)

		rep := Repair{Request: 3, Shift: -70, Origin: []byte("a"), Incarnation: 1, Body: body}
		gotRep, err := DecodeRepair(one(t, AppendRepair(nil, &rep), KindRepair))
		equal(t, gotRep, rep, err)
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

	at, state, err := DecodeState(one(t, AppendState(nil, 5, []byte("state")), KindState))
	equal(t, string(state), "state", err)
	equal(t, at, int64(5), err)

	d := Digest{Request: 1, From: 179523198, Through: 179523250, Buckets: []Bucket{{179523198, 3, 1 << 63}, {179523200, 1, 5}, {179523250, 9, 0}}}
	var gotDigest Digest
	err = DecodeDigest(&gotDigest, one(t, AppendDigest(nil, &d), KindDigest))
	equal(t, gotDigest, d, err)

	runs := []Run{{[]byte("a"), 1, 1, 5}, {[]byte("a"), 1, 9, 1}, {[]byte("a"), 2, 1, 1}, {[]byte("bb"), 2, 7, MaxRun}}
	frame, rest := AppendRuns(nil, 4, 55, runs)
	var gotRuns []Run
	request, err = DecodeRuns(one(t, frame, KindRuns), func(bucket uint64, r Run) {
		if bucket != 55 {
			t.Errorf("bucket %d", bucket)
		}
		gotRuns = append(gotRuns, r)
	})
	equal(t, gotRuns, runs, err)
	if request != 4 || len(rest) != 0 {
		t.Errorf("request %d, rest %d", request, len(rest))
	}

	request, compared, differ, err := DecodeDigestDone(one(t, AppendDigestDone(nil, 1, 60, 2), KindDigestDone))
	equal(t, []uint64{request, compared, differ}, []uint64{1, 60, 2}, err)

	request, err = DecodeRequest(one(t, AppendSnapshot(nil, 300), KindSnapshot))
	equal(t, request, uint64(300), err)
	request, err = DecodeRequest(one(t, AppendCancel(nil, 300), KindCancel))
	equal(t, request, uint64(300), err)
	request, records, err := DecodeSnapshotHead(one(t, AppendSnapshotHead(nil, 300, 1<<30), KindSnapshotHead))
	equal(t, []uint64{request, records}, []uint64{300, 1 << 30}, err)
	request, n, page, err := DecodePage(one(t, AppendPage(nil, 300, 77, []byte("page")), KindPage))
	equal(t, []any{request, n, string(page)}, []any{uint64(300), 77, "page"}, err)
	request, how, err := DecodeSnapshotDone(one(t, AppendSnapshotDone(nil, 300, Busy), KindSnapshotDone))
	equal(t, []any{request, how}, []any{uint64(300), Busy}, err)
}

func TestManyRunsTakeSeveralFrames(t *testing.T) {
	var runs []Run
	for i := range uint64(20_000) {
		runs = append(runs, Run{[]byte("some-node-with-a-name"), i / 3, 1 + 2*i, 1})
	}
	var got []Run
	for rest := runs; len(rest) > 0; {
		var frame []byte
		frame, rest = AppendRuns(nil, 1, 2, rest)
		if _, err := DecodeRuns(one(t, frame, KindRuns), func(_ uint64, r Run) {
			r.Origin = bytes.Clone(r.Origin)
			got = append(got, r)
		}); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, got, runs, nil)
}

func TestReaderCutsFramesHoweverTheyCome(t *testing.T) {
	var stream []byte
	var want []int
	for i := range 300 {
		size := i * i % 40_000
		stream = AppendState(stream, int64(i), make([]byte, size))
		want = append(want, size)
		if i%50 == 7 { // a later version's
			stream = append(append(stream, 0x6a, 0xe8, 0x07), make([]byte, 1000)...)
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
	in, out := io.Pipe()
	defer out.Close()
	r := NewReader(in, NewsSize)
	go r.Next()
	out.Write(frame[:100])
	out.Write(frame[100:200]) // the first has been taken in by now
	if n := len(r.buf); n > NewsSize+growStep {
		t.Errorf("%d bytes held for 200 that came", n)
	}
}

func TestReaderRefusesWhatIsTooLong(t *testing.T) {
	for _, b := range [][]byte{
		{byte(KindPing), 0x81, 0x10},
		{byte(KindBatch), 0xff, 0xff, 0xff, 0x7f},
		{0x7e, 0xff, 0xff, 0xff, 0x7f},
		append([]byte{byte(KindBatch)}, bytes.Repeat([]byte{0xff}, 20)...),
	} {
		r := NewReader(bytes.NewReader(b), NewsSize)
		if _, _, _, err := r.Next(); !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrMalformed) {
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

func TestNamesOfBatchesSpread(t *testing.T) {
	seen := map[uint64]bool{}
	for _, origin := range []string{"a", "b", "ab"} {
		for inc := range uint64(3) {
			key := StreamKey(origin, inc)
			for seq := range uint64(1000) {
				seen[BatchID(key, seq)] = true
			}
		}
	}
	if len(seen) != 9000 {
		t.Errorf("%d different names of 9000", len(seen))
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

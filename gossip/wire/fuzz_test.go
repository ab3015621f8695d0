package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func seeds() [][]byte {
	b := Batch{Sequence: 5, Time: 1795231982067, Records: 2, Payload: []byte("payload")}
	body := b.AppendBody(nil)
	return [][]byte{
		AppendResume(nil, KindSubscribe, Resume{Version: 1, Incarnation: 5, Next: 9}), AppendPing(nil, 5),
		AppendRequest(nil, KindSnapshot, 1), AppendRequest(nil, KindCancel, 1),
		AppendResume(nil, KindStart, Resume{1, 5, 9}), AppendPong(nil, Pong{1, 2, 3}), AppendBatch(nil, body),
		AppendLoad(nil, 5, true, []Load{{1, 2, 3}, {4, 5, 6}}), AppendState(nil, 5, []byte("state")),
		AppendUsage(nil, 5, true, []Usage{{1, 2, 3}, {4, 5, 6}}), AppendFigures(nil, 5, true, []Figure{{1, 2, 3}, {4, 5, 6}}),
		AppendSnapshotHead(nil, 1, 2, []Position{{[]byte("a"), 3, 4}, {[]byte("b"), 5, 6}}), AppendPage(nil, 1, 2, []byte("page")),
		AppendSnapshotDone(nil, 1, Complete), {0x7e, 0, 0, 2, 1, 1},
	}
}

func again(k Kind, body []byte) []byte {
	switch k {
	case KindSubscribe:
		if v, err := DecodeResume(body); err == nil {
			return AppendResume(nil, KindSubscribe, v)
		}
	case KindPing:
		if v, err := DecodePing(body); err == nil {
			return AppendPing(nil, v)
		}
	case KindSnapshot:
		if v, err := DecodeRequest(body); err == nil {
			return AppendRequest(nil, KindSnapshot, v)
		}
	case KindCancel:
		if v, err := DecodeRequest(body); err == nil {
			return AppendRequest(nil, KindCancel, v)
		}
	case KindStart:
		if v, err := DecodeResume(body); err == nil {
			return AppendResume(nil, KindStart, v)
		}
	case KindPong:
		if v, err := DecodePong(body); err == nil {
			return AppendPong(nil, v)
		}
	case KindBatch:
		if v, err := DecodeBatch(body); err == nil {
			return AppendBatch(nil, v.AppendBody(nil))
		}
	case KindLoad:
		if v, at, full, err := DecodeLoad(nil, body); err == nil {
			return AppendLoad(nil, at, full, v)
		}
	case KindUsage:
		if v, at, full, err := DecodeUsage(nil, body); err == nil {
			return AppendUsage(nil, at, full, v)
		}
	case KindFigures:
		if v, at, full, err := DecodeFigures(nil, body); err == nil {
			return AppendFigures(nil, at, full, v)
		}
	case KindClaims:
		if at, v, err := DecodeClaims(body); err == nil {
			return AppendClaims(nil, at, v)
		}
	case KindState:
		if at, v, err := DecodeState(body); err == nil {
			return AppendState(nil, at, v)
		}
	case KindSnapshotHead:
		if a, b, positions, err := DecodeSnapshotHead(body); err == nil {
			return AppendSnapshotHead(nil, a, b, positions)
		}
	case KindPage:
		if a, b, page, err := DecodePage(body); err == nil {
			return AppendPage(nil, a, b, page)
		}
	case KindSnapshotDone:
		if a, b, err := DecodeSnapshotDone(body); err == nil {
			return AppendSnapshotDone(nil, a, b)
		}
	}
	return nil
}

func decodeAll(b []byte) (frames int) {
	r := NewReader(bytes.NewReader(b), NewsSize)
	for {
		k, body, _, err := r.Next()
		if err != nil {
			return frames
		}
		again(k, body)
		frames++
	}
}

func FuzzStream(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}
	f.Add(bytes.Join(seeds(), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b), NewsSize)
		for {
			k, body, size, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrMalformed) {
					t.Fatalf("unexpected error %v", err)
				}
				return
			}
			limit, known := Limit(k)
			if !known || len(body) > limit || size > len(b) {
				t.Fatalf("%v: %d bytes, limit %d", k, len(body), limit)
			}
			first := again(k, body)
			if first == nil {
				continue
			}
			body2 := one(t, first, k)
			if second := again(k, body2); !bytes.Equal(first, second) {
				t.Fatalf("%v: % x comes back as % x", k, first, second)
			}
		}
	})
}

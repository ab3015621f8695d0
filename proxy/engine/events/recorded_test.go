package events

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// recording is a file of testdata: what an engine published, and how msgspec reads it.
type recording struct {
	RequestFrames []string `json:"request_frames"`
	Messages      []struct {
		Frames   []string          `json:"frames"` // base64
		Sequence int64             `json:"sequence"`
		Decoded  []json.RawMessage `json:"decoded"` // time, events, rank
	} `json:"messages"`
}

type recordedEvent struct {
	Type      string `json:"type"`
	Hashes    []hash `json:"block_hashes"`
	Parent    *hash  `json:"parent_block_hash"`
	Tokens    []int  `json:"token_ids"`
	BlockSize int    `json:"block_size"`
	Medium    string `json:"medium"`
	Group     int32  `json:"group_idx"`
	Session   string `json:"session_id"`
}

// hash is signed in SGLang's events.
type hash uint64

func (h *hash) UnmarshalJSON(b []byte) error {
	var signed int64
	if json.Unmarshal(b, &signed) == nil {
		*h = hash(signed)
		return nil
	}
	return json.Unmarshal(b, (*uint64)(h))
}

func (e recordedEvent) event(t *testing.T) Event {
	t.Helper()
	w := Event{BlockSize: e.BlockSize, Tokens: len(e.Tokens), Group: e.Group}
	for _, h := range e.Hashes {
		w.Hashes = append(w.Hashes, uint64(h))
	}
	switch e.Type {
	case "AllBlocksCleared":
		return Event{Kind: Cleared}
	case "BlockRemoved":
		w.Kind = Removed
	}
	if e.Medium != "GPU" {
		t.Fatalf("medium %q", e.Medium)
	}
	if e.Parent != nil {
		w.Parent, w.HasParent = uint64(*e.Parent), true
	}
	if e.Session != "" {
		w.Session = []byte(e.Session)
	}
	return w
}

func frames(t *testing.T, list []string) [][]byte {
	t.Helper()
	var all [][]byte
	for _, f := range list {
		b, err := base64.StdEncoding.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func recordings(t *testing.T, engine string) map[string]recording {
	t.Helper()
	files, err := filepath.Glob("testdata/" + engine + "-*/[0-9]*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	all := make(map[string]recording)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r recording
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = r
	}
	return all
}

func TestDecodeRecordings(t *testing.T) {
	for engine, least := range map[string]int{"vllm": 30, "sglang": 29} {
		batches := 0
		for file, r := range recordings(t, engine) {
			for _, m := range r.Messages {
				f := frames(t, m.Frames)
				if m.Sequence < 0 {
					continue
				}
				var d Decoder
				got, ignored, err := d.Decode(f[len(f)-1])
				if err != nil || ignored != 0 {
					t.Fatalf("%s, %s: batch %d: %d ignored, %v", engine, file, m.Sequence, ignored, err)
				}
				var want []Event
				var events []recordedEvent
				if err := json.Unmarshal(m.Decoded[1], &events); err != nil {
					t.Fatal(err)
				}
				for _, e := range events {
					want = append(want, e.event(t))
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %s: batch %d\ngot  %+v\nwant %+v", engine, file, m.Sequence, got, want)
				}
				batches++
			}
		}
		if batches < least {
			t.Errorf("%d batches of %s", batches, engine)
		}
	}
}

// A stream takes the frames of PUB and ROUTER as an engine sent them.
func TestStreamOfRecordings(t *testing.T) {
	all := recordings(t, "vllm")
	p := newPublisher(t, true)
	for seq := uint64(0); ; seq++ {
		found := false
		for _, r := range all {
			for _, m := range r.Messages {
				if f := frames(t, m.Frames); len(f) == 3 && uint64(m.Sequence) == seq {
					if string(f[0]) != "kv" || binary.BigEndian.Uint64(f[1]) != seq {
						t.Fatalf("frames %q", f[:2])
					}
					p.ring, found = append(p.ring, numbered{seq, f[2]}), true
				}
			}
		}
		if !found {
			break
		}
	}
	if len(p.ring) < 31 {
		t.Fatalf("%d batches", len(p.ring))
	}
	half := len(p.ring) / 2
	later := p.ring[half:]
	p.ring = p.ring[:half]
	s, _ := p.follow(0)
	eventually(t, "replay", func() bool { return s.Counters.Batches.Load() == int64(half) })
	for _, b := range later {
		p.publish(b)
	}
	eventually(t, "stream", func() bool { return s.Counters.Batches.Load() == int64(half+len(later)) })
	if s.Counters.Refused.Load()+s.Counters.Gaps.Load()+s.Counters.Ignored.Load()+s.Counters.Resets.Load() != 0 {
		t.Error("refused, missing or ignored batches")
	}
	// The recorded replay has the frames that the publisher of these tests imitates.
	for _, m := range all["30-replay.json"].Messages {
		f := frames(t, m.Frames)
		if len(f) != 4 || len(f[0]) != 0 || (string(f[1]) == "kv") != (m.Sequence >= 0) || int64(binary.BigEndian.Uint64(f[2])) != m.Sequence {
			t.Errorf("replay frames %q of %d", f[:3], m.Sequence)
		}
	}
}

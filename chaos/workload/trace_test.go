package workload

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const idsTrace = `{"timestamp":0,"input_length":1300,"output_length":10,"hash_ids":[0,1,2],"type":"x"}
{"timestamp":0,"input_length":1536,"output_length":0,"hash_ids":[0,1,3]}

{"timestamp":3000,"input_length":2048,"output_length":5,"hash_ids":[0,1,3,4]}
`

func read(t *testing.T, name, text string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text), name)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func drain(t *testing.T, w Workload, opt Options) []*Request {
	t.Helper()
	src, err := w.Source(opt)
	if err != nil {
		t.Fatal(err)
	}
	var all []*Request
	for r := src.Next(); r != nil; r = src.Next() {
		all = append(all, r)
	}
	return all
}

func TestReadHashIDs(t *testing.T) {
	tr := read(t, "dir/conv.dev.jsonl", idsTrace)
	if tr.Name() != "conv" || tr.KeyTokens() != 512 || tr.Len() != 3 {
		t.Fatalf("name %q, block %d, %d requests", tr.Name(), tr.KeyTokens(), tr.Len())
	}
	rs := drain(t, tr, Options{})
	if got := []int{len(rs[0].Keys), len(rs[1].Keys), len(rs[2].Keys)}; !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("full blocks: %v (the id of a partial block has no key)", got)
	}
	if !slices.Equal(rs[1].Keys, rs[2].Keys[:3]) || !slices.Equal(rs[0].Keys, rs[1].Keys[:2]) {
		t.Error("equal id prefixes have different keys")
	}
	if rs[1].OutputTokens != 1 {
		t.Errorf("an output of 0 tokens became %d, want 1", rs[1].OutputTokens)
	}
	if rs[0].Session != -1 {
		t.Errorf("session %d without one", rs[0].Session)
	}
}

func TestHashRunsAndGzipReadTheSame(t *testing.T) {
	runs := `{"timestamp":0,"input_length":1300,"output_length":10,"hash_runs":[0,3]}
{"timestamp":0,"input_length":1536,"output_length":0,"hash_runs":[0,2,3,1]}
{"timestamp":3000,"input_length":2048,"output_length":5,"hash_runs":[0,2,3,2]}
`
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write([]byte(runs)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	zipped, err := Read(&z, "x")
	if err != nil {
		t.Fatal(err)
	}
	want := drain(t, read(t, "x", idsTrace), Options{Seed: 4})
	for _, tr := range []*Trace{read(t, "x", runs), zipped} {
		got := drain(t, tr, Options{Seed: 4})
		for i := range want {
			if !slices.Equal(got[i].Keys, want[i].Keys) || got[i].At != want[i].At {
				t.Errorf("request %d differs between the two forms", i)
			}
		}
	}
}

func TestBadLines(t *testing.T) {
	good := `{"timestamp":0,"input_length":1024,"output_length":10,"hash_ids":[0,1]}` + "\n"
	for _, c := range []struct{ name, line, want string }{
		{"not json", `{"timestamp":`, "one JSON object a line"},
		{"array", `[1,2]`, "one JSON object a line"},
		{"field missing", `{"timestamp":1,"input_length":3}`, "all needed"},
		{"negative time", `{"timestamp":-1,"input_length":3,"output_length":1}`, "timestamp is -1"},
		{"empty prompt", `{"timestamp":1,"input_length":0,"output_length":1}`, "input_length is 0"},
		{"negative output", `{"timestamp":1,"input_length":1,"output_length":-1}`, "output_length is -1"},
		{"both forms", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[1,2],"hash_runs":[1,2]}`, "keep one"},
		{"odd runs", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_runs":[1,2,3]}`, "pairs"},
		{"huge run", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_runs":[1,4000000000]}`, "a run of 4000000000"},
		{"run of none", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_runs":[1,0]}`, "a run of 0"},
		{"many runs", `{"timestamp":1,"input_length":3,"output_length":1,"hash_runs":[1,3,9,3]}`, "names 6 blocks"},
		{"too many blocks", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[1,2,3]}`, "block_tokens"},
		{"too few blocks", `{"timestamp":1,"input_length":10240,"output_length":1,"hash_ids":[1,2,3]}`, "block_tokens"},
		{"negative id", `{"timestamp":1,"input_length":1024,"output_length":1,"hash_ids":[-1,2]}`, "not a request"},
		{"bad block", `{"timestamp":1,"input_length":1024,"output_length":1,"block_tokens":0,"hash_ids":[1,2]}`, "block_tokens is 0"},
		{"session without turn", `{"timestamp":1,"input_length":1024,"output_length":1,"session":3,"hash_ids":[1,2]}`, "turn"},
	} {
		_, err := Read(strings.NewReader(good+good+c.line+"\n"+good), "bad.jsonl")
		if err == nil || !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "bad.jsonl:3: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Read(strings.NewReader("\n\n"), "e"); !errors.Is(err, ErrTrace) {
		t.Errorf("an empty trace: %v", err)
	}
	long := good + `{"x":"` + strings.Repeat("a", MaxLine) + `"}`
	if _, err := Read(strings.NewReader(long), "l"); err == nil || !strings.Contains(err.Error(), "l:2: the line is longer") {
		t.Errorf("a line over the limit: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestBlockSizeInferredOrGiven(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		in := 1000 + 37*i
		n := in / 64
		if i%7 == 0 {
			n--
		}
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":1,"hash_runs":[%d,%d]}`+"\n", i, in, i*1000, n)
	}
	if tr := read(t, "x", b.String()); tr.KeyTokens() != 64 {
		t.Errorf("inferred %d tokens a block, want 64", tr.KeyTokens())
	}
	given := `{"timestamp":0,"input_length":1000,"output_length":1,"block_tokens":100,"hash_ids":[1,2,3]}`
	tr := read(t, "x", given)
	if r := drain(t, tr, Options{})[0]; tr.KeyTokens() != 100 || len(r.Keys) != 3 {
		t.Errorf("block_tokens ignored: %d, %d keys", tr.KeyTokens(), len(r.Keys))
	}
	odd := `{"timestamp":0,"input_length":1000,"output_length":1,"hash_ids":[1,2,3,4,5]}`
	if _, err := Read(strings.NewReader(odd), "x"); err == nil || !strings.Contains(err.Error(), "block_tokens") {
		t.Errorf("a block of 200 tokens was guessed: %v", err)
	}
	lengths := `{"timestamp":0,"input_length":1000,"output_length":1}`
	if r := drain(t, read(t, "x", lengths), Options{})[0]; len(r.Keys) != 0 || r.PromptTokens != 1000 {
		t.Errorf("a trace of lengths only: %+v", r)
	}
}

func TestCoarseClockIsSpreadInOrder(t *testing.T) {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":512,"output_length":1,"hash_ids":[%d]}`+"\n", i/10*3000, i)
	}
	tr := read(t, "x", b.String())
	one, same, other := drain(t, tr, Options{Seed: 1}), drain(t, tr, Options{Seed: 1}), drain(t, tr, Options{Seed: 2})
	distinct := make(map[time.Duration]bool)
	moved := 0
	for i, r := range one {
		if i > 0 && r.At < one[i-1].At {
			t.Fatalf("request %d is earlier than the one before", i)
		}
		if lo := time.Duration(i/10) * 3 * time.Second; r.At < lo || r.At >= lo+3*time.Second {
			t.Errorf("request %d at %v left its step", i, r.At)
		}
		if r.At != same[i].At {
			t.Errorf("request %d differs under the same seed", i)
		}
		if r.At != other[i].At {
			moved++
		}
		distinct[r.At] = true
	}
	if len(distinct) < 290 || moved < 290 {
		t.Errorf("%d distinct times, %d moved by another seed", len(distinct), moved)
	}
}

func TestLimits(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":512,"output_length":1}`+"\n", 5000+i*1000)
	}
	tr := read(t, "x", b.String())
	if rs := drain(t, tr, Options{Speed: 2}); rs[0].At != 0 || rs[99].At != 49500*time.Millisecond {
		t.Errorf("speed 2: from %v to %v", rs[0].At, rs[99].At)
	}
	if n := len(drain(t, tr, Options{Speed: 2, Duration: 10 * time.Second})); n != 20 {
		t.Errorf("%d requests in 10 s at two a second", n)
	}
	if n := len(drain(t, tr, Options{Requests: 7})); n != 7 {
		t.Errorf("%d requests, wanted 7", n)
	}
	for _, o := range []Options{{Speed: -1}, {Duration: -1}, {Requests: -1}, {Backends: -1}} {
		if _, err := tr.Source(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestTurnsShareMemoryOfKeys(t *testing.T) {
	text := `{"timestamp":0,"input_length":1024,"output_length":1,"session":"a","turn":1,"hash_runs":[0,2]}
{"timestamp":1,"input_length":4096,"output_length":1,"session":"a","turn":2,"hash_runs":[0,8]}
{"timestamp":2,"input_length":2048,"output_length":1,"session":"a","turn":3,"hash_runs":[0,3,90,1]}
{"timestamp":3,"input_length":5120,"output_length":1,"session":"a","turn":4,"hash_runs":[0,10]}
{"timestamp":4,"input_length":2048,"output_length":1,"session":"a","turn":5,"hash_runs":[0,4]}
{"timestamp":5,"input_length":5120,"output_length":1,"session":"b","turn":1,"hash_runs":[0,10]}
`
	rs := drain(t, read(t, "x", text), Options{})
	if &rs[1].Keys[0] != &rs[4].Keys[0] && &rs[3].Keys[0] != &rs[4].Keys[0] {
		t.Error("a prefix of an earlier turn was copied")
	}
	want := rs[5].Keys
	for i, n := range []int{2, 8, 3, 10, 4} {
		if !slices.Equal(rs[i].Keys[:n], want[:n]) {
			t.Errorf("turn %d: keys overwritten", i+1)
		}
	}
	if rs[2].Keys[3] == want[3] {
		t.Error("another block has the same key")
	}
}

func TestRealTraces(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "traces")
	for _, c := range []struct {
		file             string
		requests, block  int
		keys, multiTurns int
	}{
		{"mooncake_conversation.dev.jsonl.gz", 5606, 512, 0, 0},
		{"mooncake_hotmix_synthetic.dev.jsonl.gz", 11006, 512, 0, 0},
		{"weka_claude_code.dev.jsonl.gz", 17926, 64, 33740725, 0},
		{"ragpulse.dev.jsonl.gz", 4081, 64, 183289, 0},
		{"azure2023_code_lengths.dev.jsonl.gz", 5353, 512, 0, 0},
	} {
		t.Run(c.file, func(t *testing.T) {
			path := filepath.Join(dir, c.file)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("no such trace beside the repository: %v", err)
			}
			tr, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if tr.Len() != c.requests || tr.KeyTokens() != c.block {
				t.Errorf("%d requests, %d tokens a block", tr.Len(), tr.KeyTokens())
			}
			keys := 0
			for _, r := range drain(t, tr, Options{}) {
				keys += len(r.Keys)
				if len(r.Keys)*r.KeyTokens > r.PromptTokens {
					t.Fatalf("request %d has more blocks than tokens", r.Index)
				}
			}
			if c.keys > 0 && keys != c.keys {
				t.Errorf("%d keys, want %d", keys, c.keys)
			}
		})
	}
}

package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// MaxLine bounds one line of a trace, in bytes: 400 thousand block ids of ten digits, over ten
	// times the longest known prompt.
	MaxLine = 4 << 20
	// MaxTraceRequests bounds a trace; one line costs about 100 bytes of memory.
	MaxTraceRequests = 20_000_000
	// maxTokens bounds the lengths in a line, maxBlocks the blocks of a prompt: about 20 and 70
	// times the longest known.
	maxTokens = 1 << 24
	maxBlocks = 1 << 20
	// maxTimestamp bounds time stamps, in milliseconds: about 30 years.
	maxTimestamp = 1e12
	defaultBlock = 512
)

// ErrTrace is wrapped by every error about a trace's content; the text names file and line.
var ErrTrace = errors.New("trace")

type span struct {
	id uint64
	n  uint32
}

type line struct {
	at       float64 // ms
	no       int
	input    int
	output   int
	blocks   int
	session  int
	turn     int
	from, to int
}

// Trace is a recorded workload, run-length encoded in memory.
type Trace struct {
	name        string
	path        string
	lines       []line
	spans       []span
	sessions    map[string]int
	blockTokens int
	coarse      bool
}

type record struct {
	Timestamp    *float64        `json:"timestamp"`
	InputLength  *int            `json:"input_length"`
	OutputLength *int            `json:"output_length"`
	Session      json.RawMessage `json:"session"`
	Turn         int             `json:"turn"`
	BlockTokens  *int            `json:"block_tokens"`
	HashIDs      []uint64        `json:"hash_ids"`
	HashRuns     []uint64        `json:"hash_runs"`
}

// Open reads a trace: JSON Lines, plain or gzip, in Mooncake's format (timestamp in ms,
// input_length and output_length in tokens, hash_ids), with hash_runs (start, count, ...) as an
// alternative to hash_ids, and optional session, turn and block_tokens. It ignores other fields.
//
// Ids are chained on reading, so a file may number blocks by content or by whole prefix. DESIGN.md
// has the inference of a missing block_tokens.
//
// Errors wrap [ErrTrace] and name the file, the line and a correction.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	defer f.Close()
	t, err := Read(f, path)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Read is [Open] for a reader; name stands for the path.
func Read(r io.Reader, name string) (*Trace, error) {
	t := &Trace{path: name, sessions: make(map[string]int)}
	base, _, _ := strings.Cut(filepath.Base(name), ".")
	t.name = base
	br := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := br.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: not a gzip file after all: %w", ErrTrace, name, err)
		}
		defer z.Close()
		br = bufio.NewReaderSize(z, 64<<10)
	}
	if err := t.scan(br); err != nil {
		return nil, err
	}
	if len(t.lines) == 0 {
		return nil, fmt.Errorf("%w: %s: no requests in it: one JSON object a line is expected", ErrTrace, name)
	}
	if err := t.settleBlocks(); err != nil {
		return nil, err
	}
	t.order()
	return t, nil
}

func (t *Trace) errorf(no int, format string, args ...any) error {
	return fmt.Errorf("%w: %s:%d: %w", ErrTrace, t.path, no, fmt.Errorf(format, args...))
}

func (t *Trace) scan(r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), MaxLine)
	no := 0
	for sc.Scan() {
		no++
		b := bytes.TrimSpace(sc.Bytes())
		if len(b) == 0 {
			continue
		}
		if len(t.lines) == MaxTraceRequests {
			return t.errorf(no, "more than %d requests: cut the file", MaxTraceRequests)
		}
		var rec record
		if err := json.Unmarshal(b, &rec); err != nil {
			return t.errorf(no, "not a request: %w: one JSON object a line is expected", err)
		}
		if err := t.add(no, &rec); err != nil {
			return err
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return t.errorf(no+1, "the line is longer than %d MiB: write long id lists as hash_runs (start, count, ...)", MaxLine>>20)
	case err != nil:
		return t.errorf(no+1, "cannot read on: %w: the file may be cut short", err)
	}
	return nil
}

func (t *Trace) add(no int, rec *record) error {
	switch {
	case rec.Timestamp == nil || rec.InputLength == nil || rec.OutputLength == nil:
		return t.errorf(no, "timestamp (ms), input_length and output_length (tokens) are all needed")
	case !(*rec.Timestamp >= 0 && *rec.Timestamp <= maxTimestamp):
		return t.errorf(no, "timestamp is %v, want milliseconds from the start of the trace, 0 to %g", *rec.Timestamp, float64(maxTimestamp))
	case *rec.InputLength < 1 || *rec.InputLength > maxTokens:
		return t.errorf(no, "input_length is %d, want 1 to %d tokens", *rec.InputLength, maxTokens)
	case *rec.OutputLength < 0 || *rec.OutputLength > maxTokens:
		return t.errorf(no, "output_length is %d, want 0 to %d tokens", *rec.OutputLength, maxTokens)
	case rec.HashIDs != nil && rec.HashRuns != nil:
		return t.errorf(no, "both hash_ids and hash_runs are given: keep one")
	case len(rec.HashRuns)%2 != 0:
		return t.errorf(no, "hash_runs has %d numbers, want pairs of start and count", len(rec.HashRuns))
	case rec.Turn < 0:
		return t.errorf(no, "turn is %d, want 1 or more", rec.Turn)
	}
	l := line{at: *rec.Timestamp, no: no, input: *rec.InputLength, output: max(1, *rec.OutputLength),
		session: t.session(rec.Session), turn: rec.Turn, from: len(t.spans)}
	if l.turn == 0 && l.session >= 0 {
		return t.errorf(no, "a session without a turn: add \"turn\", counted from 1")
	}
	for _, id := range rec.HashIDs {
		t.push(&l, id, 1)
	}
	for i := 0; i < len(rec.HashRuns); i += 2 {
		id, n := rec.HashRuns[i], rec.HashRuns[i+1]
		if n < 1 || n > uint64(min(l.input, maxBlocks)) || id > math.MaxUint64-n {
			return t.errorf(no, "hash_runs has a run of %d blocks in a prompt of %d tokens: runs are start, count", n, l.input)
		}
		t.push(&l, id, uint32(n))
		if l.blocks > min(l.input, maxBlocks) {
			return t.errorf(no, "hash_runs names %d blocks in a prompt of %d tokens; at most %d are read", l.blocks, l.input, maxBlocks)
		}
	}
	l.to = len(t.spans)
	if rec.BlockTokens != nil {
		if *rec.BlockTokens < 1 || *rec.BlockTokens > maxTokens {
			return t.errorf(no, "block_tokens is %d, want the tokens of one block", *rec.BlockTokens)
		}
		if t.blockTokens != 0 && t.blockTokens != *rec.BlockTokens {
			return t.errorf(no, "block_tokens is %d here and %d above: one file has one block size", *rec.BlockTokens, t.blockTokens)
		}
		t.blockTokens = *rec.BlockTokens
	}
	t.lines = append(t.lines, l)
	return nil
}

func (t *Trace) push(l *line, id uint64, n uint32) {
	l.blocks += int(n)
	if last := len(t.spans) - 1; last >= l.from && t.spans[last].id+uint64(t.spans[last].n) == id {
		t.spans[last].n += n
		return
	}
	t.spans = append(t.spans, span{id: id, n: n})
}

func (t *Trace) session(raw json.RawMessage) int {
	if len(raw) == 0 || string(raw) == "null" {
		return -1
	}
	n, ok := t.sessions[string(raw)]
	if !ok {
		n = len(t.sessions)
		t.sessions[string(raw)] = n
	}
	return n
}

// Name returns the file's name without directory and extensions.
func (t *Trace) Name() string { return t.name }

func (t *Trace) KeyTokens() int { return t.blockTokens }

// Len returns the number of requests.
func (t *Trace) Len() int { return len(t.lines) }

func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

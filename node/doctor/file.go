package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"time"

	"github.com/zeebo/xxh3"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/prompt"
)

const (
	maxLine      = 64 << 20 // bytes: twice the largest body that routers take by default
	maxSeen      = 4 << 20  // blocks: 2 GiB of different prompts
	maxTraceRuns = 1 << 20  // blocks of a traced prompt

	bytesPerToken = 4 // as no engine counts them
)

// ErrFile means that a file is no log of requests; the text names the line and a remedy.
var ErrFile = errors.New("doctor")

// File diagnoses the requests of a file as if one engine with a cache that loses nothing had answered them in their order, at rate tokens/s of
// prefill. The file is JSON Lines, plain or gzip. A line is
//
//   - the body of a request (OpenAI, Anthropic or SGLang);
//   - {"url": PATH, "body": BODY}, as in files for OpenAI's batch API, with an optional "client" and "timestamp" (in ms);
//   - a request of a trace (chaos/workload/DESIGN.md), which has block ids for text, so lengths are in tokens.
//
// Errors wrap [ErrFile], or are those of in.
func File(in io.Reader, rate float64) (*Report, error) {
	f := &file{d: Doctor{window: math.MaxInt64, applications: make(map[Application]*application)}, seen: make(map[prefixtree.Hash]struct{}), rate: rate}
	// Only this process uses the hashes.
	h, err := prefixtree.NewHasher([]byte("doctor"), prefixtree.DefaultBlockBytes)
	if err != nil {
		return nil, err
	}
	f.hasher, f.parser = h, prompt.NewParser(h)
	br := bufio.NewReaderSize(in, 64<<10)
	if magic, _ := br.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("%w: not a gzip file after all: %w", ErrFile, err)
		}
		br = bufio.NewReaderSize(z, 64<<10)
	}
	lines := bufio.NewScanner(br)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		f.no++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := f.line(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFile, f.no, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d is longer than %d MiB: leave it out", ErrFile, f.no+1, maxLine>>20)
	case err != nil:
		return nil, err
	case f.requests == 0:
		return nil, fmt.Errorf("%w: no requests: one JSON object a line is expected", ErrFile)
	}
	return f.report(), nil
}

type file struct {
	d        Doctor
	hasher   *prefixtree.Hasher
	parser   *prompt.Parser
	hashes   []prefixtree.Hash
	keys     []uint64
	seen     map[prefixtree.Hash]struct{} // blocks of the requests before
	rate     float64
	no       int // of the line
	requests int
	timed    int           // requests with a time
	last     time.Duration // the latest, since the earliest
	first    float64       // ms
}

// entry is a line; members that only tell the kinds of body from each other stay raw.
type entry struct {
	Timestamp json.RawMessage `json:"timestamp"`
	URL       json.RawMessage `json:"url"`
	Path      json.RawMessage `json:"path"`
	Client    json.RawMessage `json:"client"`
	Body      json.RawMessage `json:"body"`

	Messages json.RawMessage `json:"messages"`
	System   json.RawMessage `json:"system"`
	Prompt   json.RawMessage `json:"prompt"`
	Input    json.RawMessage `json:"input"`
	Text     json.RawMessage `json:"text"`
	InputIDs json.RawMessage `json:"input_ids"`

	InputLength int      `json:"input_length"`
	HashIDs     []uint64 `json:"hash_ids"`
	HashRuns    []uint64 `json:"hash_runs"`
	BlockTokens int      `json:"block_tokens"`
}

func (f *file) line(text []byte) error {
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("not a request: %w: one JSON object a line is expected", err)
	}
	if e.InputLength > 0 {
		return f.traced(&e)
	}
	at, key, body := number(e.Timestamp), Application{Client: word(e.Client)}, text
	path := word(e.URL) + word(e.Path)
	if len(e.Body) > 0 {
		body, e = e.Body, entry{}
		if err := json.Unmarshal(body, &e); err != nil {
			return fmt.Errorf("body: %w", err)
		}
	} else {
		path, key.Client = "", "" // a member of the body
	}
	kind := e.kind(path)
	if kind == prompt.Other {
		return errors.New(`no inference request: want a body with messages, prompt, input or text, or {"url":"/v1/chat/completions","body":{...}}`)
	}
	var r prompt.Request
	if err := f.parser.Parse(kind, body, prompt.Options{}, &r); err != nil {
		return err
	}
	s := &prompt.Sketch{Seed: f.d.seed}
	f.parser.Sketch(s)
	key.Model = string(r.Model[:min(len(r.Model), maxName)])
	cached, err := f.visit(r.Hashes)
	if err != nil {
		return err
	}
	f.take(key, at, sample{sketch: s, tokens: float64(r.PromptBytes) / bytesPerToken, cached: float64(cached*f.hasher.BlockBytes()) / bytesPerToken})
	return nil
}

// word returns a JSON string's text; "" for other values.
func word(raw json.RawMessage) (text string) {
	if json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// number returns nil for values that are none.
func number(raw json.RawMessage) (n *float64) {
	if json.Unmarshal(raw, &n) != nil {
		return nil
	}
	return n
}

// kind goes by the path or, without one, by the body's members.
func (e *entry) kind(path string) prompt.Kind {
	switch {
	case path != "":
		return prompt.KindOf([]byte(path))
	case e.Messages != nil && e.System != nil:
		return prompt.Messages
	case e.Messages != nil:
		return prompt.Chat
	case e.Prompt != nil:
		return prompt.Completion
	case e.Input != nil:
		return prompt.Responses
	case e.Text != nil || e.InputIDs != nil:
		return prompt.Generate
	}
	return prompt.Other
}

func (f *file) traced(e *entry) error {
	f.keys = append(f.keys[:0], e.HashIDs...)
	for runs := e.HashRuns; len(runs) > 1; runs = runs[2:] {
		if runs[1] > maxTraceRuns || len(f.keys) > maxTraceRuns {
			return fmt.Errorf("hash_runs names more than %d blocks", maxTraceRuns)
		}
		for i := range runs[1] {
			f.keys = append(f.keys, runs[0]+i)
		}
	}
	block := e.BlockTokens
	if block <= 0 && len(f.keys) > 0 {
		block = (e.InputLength + len(f.keys) - 1) / len(f.keys)
	}
	if block > math.MaxUint16 {
		return fmt.Errorf("blocks of %d tokens: at most %d are read", block, math.MaxUint16)
	}
	f.hashes = prefixtree.FromKeys(f.hashes[:0], f.hasher, nil, f.keys)
	cached, err := f.visit(f.hashes)
	if err != nil {
		return err
	}
	s := &prompt.Sketch{Bytes: e.InputLength}
	for _, k := range f.keys[:min(len(f.keys), prompt.SketchChunks)] {
		id := binary.LittleEndian.AppendUint64(nil, k)
		s.Chunks = append(s.Chunks, prompt.Chunk{Hash: uint32(xxh3.Hash(id)), Bytes: uint16(block), Field: prompt.FieldPrompt})
	}
	tokens := float64(e.InputLength)
	f.take(Application{}, number(e.Timestamp), sample{sketch: s, tokens: tokens, cached: min(float64(cached*block), tokens)})
	return nil
}

// visit returns how many leading blocks earlier requests had, and remembers all.
func (f *file) visit(hashes []prefixtree.Hash) (cached int, err error) {
	for cached < len(hashes) {
		if _, ok := f.seen[hashes[cached]]; !ok {
			break
		}
		cached++
	}
	for _, h := range hashes[cached:] {
		f.seen[h] = struct{}{}
	}
	if len(f.seen) > maxSeen {
		return 0, fmt.Errorf("more than %d different blocks: cut the file", maxSeen)
	}
	return cached, nil
}

// take keeps a sample at its time or, without, at one second after that of the line before.
func (f *file) take(key Application, ms *float64, s sample) {
	since := time.Duration(f.requests) * time.Second
	if ms != nil {
		if f.timed == 0 {
			f.first = *ms
		}
		f.timed++
		since = time.Duration((*ms - f.first) * float64(time.Millisecond))
		f.last = max(f.last, since)
	}
	f.requests++
	s.rate, s.at = f.rate, time.Unix(0, 0).Add(since)
	f.d.add(key, s, 1)
}

// report counts per hour if all requests have times.
func (f *file) report() *Report {
	r := &Report{Per: "file", Reporting: 1, Applications: []Diagnosis{}}
	span := time.Duration(0)
	if f.timed == f.requests && f.last > 0 {
		r.Per, span = "hour", f.last
	}
	for key, a := range f.d.applications {
		sort.Slice(a.samples, func(i, j int) bool { return a.samples[i].at.Before(a.samples[j].at) })
		r.Applications = append(r.Applications, diagnose(key, a.samples, a.now, span))
	}
	sortDiagnoses(r.Applications)
	return r
}

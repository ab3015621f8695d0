package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy"
	"grapevine.example/proxy/policy"
	"grapevine.example/proxy/prompt"
)

// The number of samples a second follows the rate of requests down and up, and no burst takes more than twice of it, once adapted.
func TestSamplingFollowsTheRate(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	d := New(16)
	now := time.Unix(0, 0)
	for _, rate := range []int{1000, 10, 20_000, 200} {
		taken, seconds := 0, 40
		for s := range seconds {
			d.Tick(now)
			for range rate {
				now = now.Add(time.Second / time.Duration(rate))
				if random.IntN(int(d.oneIn.Load())) > 0 {
					continue
				}
				d.adapt(1, now)
				if s >= seconds/2 {
					taken++
				}
			}
		}
		each := float64(taken) / float64(seconds/2)
		if least := min(float64(rate), 16) / 4; each < least || each > 32 {
			t.Errorf("%.1f samples a second of %d requests, want %.1f to 32", each, rate, least)
		}
	}
	if off := New(0); off.Sketch() != nil {
		t.Error("a doctor that is off wants a sketch")
	}
}

// What is kept is bounded, spread over the half hour, and gone after it.
func TestSamplesAreBoundedAndSpread(t *testing.T) {
	t.Parallel()
	d := New(16)
	at := time.Unix(0, 0)
	for i := range 40_000 {
		d.add(Application{Model: fmt.Sprint("m", i%2)}, sample{at: at.Add(time.Duration(i) * 100 * time.Millisecond), sketch: &prompt.Sketch{}, tokens: 10}, 3)
	}
	end := at.Add(4000 * time.Second)
	a := d.applications[Application{Model: "m1"}]
	if n := len(a.samples); n > samplesKept || n < samplesKept/2 {
		t.Errorf("%d samples are kept", n)
	}
	for i := 1; i < len(a.samples); i++ {
		if gap := a.samples[i].at.Sub(a.samples[i-1].at); gap > halfHour/6 || gap < 0 {
			t.Errorf("a gap of %v between samples", gap)
		}
	}
	r := d.Report(end)
	if len(r.Applications) != 2 {
		t.Fatalf("%+v", r)
	}
	// 5 samples a second, each for 3 requests.
	if x := r.Applications[0].Requests; x < 0.9*15*3600 || x > 1.1*15*3600 {
		t.Errorf("%.0f requests an hour, want 54,000", x)
	}
	for i := range 2 * maxApplications {
		d.add(Application{Model: fmt.Sprint("n", i)}, sample{at: end, sketch: &prompt.Sketch{}}, 1)
	}
	if len(d.applications) != maxApplications {
		t.Errorf("%d applications are kept", len(d.applications))
	}
	if r := d.Report(end.Add(time.Hour)); len(r.Applications) != 0 {
		t.Errorf("%d applications after an hour of silence", len(r.Applications))
	}
}

// What a doctor keeps of prompts are numbers: it holds no text but the names of applications.
func TestNoTextIsKept(t *testing.T) {
	t.Parallel()
	const marker = "a very secret marker"
	d := New(1000)
	h, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	p := prompt.NewParser(h)
	for i := range 20 {
		var r prompt.Request
		body := fmt.Sprintf(`{"model":"m","cache_salt":%q,"user":%q,"messages":[{"role":"system","content":%q},{"role":%q,"content":%q}]}`,
			marker, marker, strings.Repeat(marker, 200), marker, marker+fmt.Sprint(i))
		if err := p.Parse(prompt.Chat, []byte(body), prompt.Options{}, &r); err != nil {
			t.Fatal(err)
		}
		s := d.Sketch()
		p.Sketch(s)
		d.Observe(&proxy.Record{Sketch: s, Model: []byte("m"), ID: []byte(marker), Status: 200, PromptTokens: 1000}, &policy.Decision{}, 1, time.Now())
	}
	report := d.Report(time.Now())
	if len(report.Applications) != 1 || report.Applications[0].Samples != 20 {
		t.Fatalf("%+v", report)
	}
	var texts []string
	collect(reflect.ValueOf(d), &texts)
	if len(texts) == 0 {
		t.Error("not even the model's name is found")
	}
	answer, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, string(answer)) {
		if strings.Contains(text, "secret") {
			t.Errorf("text of a prompt: %q", text)
		}
	}
}

// collect appends all text that is reachable from v; bytes count as text.
func collect(v reflect.Value, texts *[]string) {
	switch v.Kind() {
	case reflect.String:
		*texts = append(*texts, v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Type() != reflect.TypeFor[*time.Location]() {
			collect(v.Elem(), texts)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			collect(v.Field(i), texts)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			*texts = append(*texts, fmt.Sprintf("%s", v))
			return
		}
		for i := range v.Len() {
			collect(v.Index(i), texts)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			collect(key, texts)
			collect(v.MapIndex(key), texts)
		}
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "no requests",
		"{}":                                "line 1: no inference request",
		"\n{\"a\"":                          "line 2: not a request",
		`{"messages":[{"role":1}],"x":nan}`: "line 1: not a request",
		`{"url":"/v1/models","body":{}}`:    "line 1: no inference request",
		`{"url":"/v1/chat/completions","body":"x"}`:                            "line 1: body",
		`{"timestamp":1,"input_length":100,"hash_runs":[1,99999999]}`:          "line 1: hash_runs names more than",
		`{"timestamp":1,"input_length":100,"hash_ids":[1],"block_tokens":1e6}`: "line 1: not a request",
		"\x1f\x8bxx": "not a gzip file",
	} {
		_, err := File(strings.NewReader(text), 1)
		if !errors.Is(err, ErrFile) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Lines of the batch API and of traces are read, with clients and times.
func TestFileForms(t *testing.T) {
	t.Parallel()
	var batch, trace strings.Builder
	for i := range 20 {
		fmt.Fprintf(&batch, `{"custom_id":"%d","method":"POST","url":"/v1/messages","client":"shop","timestamp":%d,"body":{"model":"m","system":"%s","messages":[{"role":"user","content":"%d"}]}}`+"\n", i, 60_000*i, prose(1, 3000), i)
		fmt.Fprintf(&trace, `{"timestamp":%d,"input_length":1000,"output_length":1,"hash_ids":[%d,7,8,9]}`+"\n", 60_000*i, 100+i)
	}
	r, err := File(strings.NewReader(batch.String()), 100)
	if err != nil {
		t.Fatal(err)
	}
	d := r.Applications[0]
	if r.Per != "hour" || d.Client != "shop" || d.Requests < 60 || d.Requests > 70 || d.CommonShare < 0.9 {
		t.Errorf("%s %+v", r.Per, d)
	}
	if r, err = File(strings.NewReader(trace.String()), 100); err != nil {
		t.Fatal(err)
	}
	if d = r.Applications[0]; d.Verdict != Mend || d.Findings[0].AgainBytes != 750 || d.Findings[0].DifferBytes != 250 {
		t.Errorf("%+v", d)
	}
}

// What a request costs that is not sampled.
func BenchmarkNotSampled(b *testing.B) {
	for name, d := range map[string]*Doctor{"off": New(0), "on": New(16)} {
		b.Run(name, func(b *testing.B) {
			if name == "on" {
				d.oneIn.Store(maxOneIn)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					d.Sketch()
				}
			})
		})
	}
}

// A question to the doctor with all samples that it may keep.
func BenchmarkReport(b *testing.B) {
	d := New(16)
	at := time.Unix(0, 0)
	for a := range maxApplications {
		for i := range samplesKept {
			s := &prompt.Sketch{Bytes: prompt.SketchBytes}
			for k := range prompt.SketchChunks {
				s.Chunks = append(s.Chunks, prompt.Chunk{Hash: uint32(k + i*(1-k%2)), Bytes: 146, Field: prompt.FieldSystem})
			}
			d.add(Application{Model: fmt.Sprint(a)}, sample{at: at.Add(time.Duration(i) * time.Second), sketch: s, tokens: 10_000, rate: 1000}, 1)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		d.Report(at.Add(time.Minute))
	}
}

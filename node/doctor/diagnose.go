package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"grapevine.example/proxy/prompt"
)

// Verdict is what to do about the prompts of an application.
type Verdict string

const (
	Mend    Verdict = "mend"             // see the findings
	Healthy Verdict = "nothing to mend"  // what prompts share, they share from the beginning
	Skip    Verdict = "skip it"          // prompts share nothing that an engine at random would not have, too
	Few     Verdict = "too few requests" // for a verdict
	leastOf         = 8                  // samples for a verdict
	pays            = 0.05               // of the tokens, below which routing by prefix is not worth while
	matters         = 0.01               // of the tokens, below which a finding is none
	often           = 0.05               // of the requests, likewise
)

// Report is the diagnosis of each application, the one with the most to save first.
type Report struct {
	Node string `json:"node,omitempty"`
	// Per is what figures count: "hour", or "file" for a file without times.
	Per          string      `json:"per"`
	Sampling     bool        `json:"sampling"`  // this node samples requests
	Reporting    int         `json:"reporting"` // nodes with requests in it
	Applications []Diagnosis `json:"applications"`
}

// Diagnosis is of one application. Requests and tokens are estimated from the samples.
type Diagnosis struct {
	Application
	Verdict      Verdict `json:"verdict"`
	Why          string  `json:"why"`
	Samples      int     `json:"samples"`
	SeenS        float64 `json:"seen_s"` // seconds that the samples span
	Requests     float64 `json:"requests"`
	PromptTokens float64 `json:"prompt_tokens"`
	CachedTokens float64 `json:"cached_tokens"`
	// Shares of the prompts' beginnings (64 KiB), 0 to 1: what half of the other prompts begin with, and what one of them begins with.
	CommonShare float64   `json:"common_share"`
	SharedShare float64   `json:"shared_share"`
	Findings    []Finding `json:"findings"` // the one that saves most first
}

// Finding is a place where prompts diverge that hold the same content behind it. Bytes are medians, to within a chunk of 512; tokens
// and seconds are sums over Report.Per.
type Finding struct {
	Field         string  `json:"field"`
	Kind          Kind    `json:"kind"`
	Offset        int     `json:"offset"`       // bytes of the field's text before the divergence
	At            int     `json:"at"`           // bytes of the prompt before it
	DifferBytes   int     `json:"differ_bytes"` // that differ, or have moved
	AgainBytes    int     `json:"again_bytes"`  // that are the same behind it
	Share         float64 `json:"share"`        // of the application's requests
	SavedTokens   float64 `json:"saved_tokens"` // if it were mended
	SavedPrefillS float64 `json:"saved_prefill_s"`
	Remedy        string  `json:"remedy"`
}

// maxFindings exceeds the places that there are.
const maxFindings = 16

// found is a divergence of a sample, and what it costs.
type found struct {
	divergence
	tokens, seconds float64
}

// place says which divergences are one finding.
type place struct {
	field prompt.Field
	kind  Kind
}

// diagnose compares the samples of an application. The tally is of all its requests in span; span 0 is a file without times.
func diagnose(key Application, samples []sample, all tally, span time.Duration) Diagnosis {
	d := Diagnosis{Application: key, Samples: len(samples), Findings: []Finding{}}
	per := 1.0
	if span > 0 {
		d.SeenS = samples[len(samples)-1].at.Sub(samples[0].at).Seconds()
		per = float64(time.Hour) / float64(span)
	}
	d.Requests, d.PromptTokens, d.CachedTokens = per*all.requests, per*all.tokens, per*all.cached
	if len(samples) > 1 { // peers may have more
		places := d.examine(samples)
		for at, list := range places {
			if f := d.finding(at, list); f.Share >= often && f.SavedTokens >= matters*d.PromptTokens {
				d.Findings = append(d.Findings, f)
			}
		}
	}
	d.judge()
	return d
}

// examine fills the shares and returns the divergences that cost tokens.
func (d *Diagnosis) examine(samples []sample) map[place][]found {
	places := make(map[place][]found)
	study := newStudy(samples)
	var bytes, commonBytes, sharedBytes float64
	for i := range samples {
		s := &samples[i]
		partner, begins := study.nearest(i)
		sketched := sum(s.sketch.Chunks)
		bytes += float64(sketched)
		if len(begins) > 0 {
			slices.Sort(begins)
			commonBytes += float64(begins[len(begins)/2])
			sharedBytes += float64(begins[len(begins)-1])
		}
		if partner < 0 {
			continue
		}
		v := study.compare(i, partner)
		if v.kind == "" {
			continue
		}
		perByte := s.tokens / float64(max(s.sketch.Bytes, 1))
		tokens := min(float64(v.again)*perByte, float64(v.at+v.again)*perByte-s.cached)
		if tokens <= 0 {
			continue // cached: another request had the same there
		}
		f := found{divergence: v, tokens: tokens}
		if s.rate > 0 {
			f.seconds = tokens / s.rate
		}
		at := place{v.field, v.kind}
		places[at] = append(places[at], f)
	}
	if bytes > 0 {
		d.CommonShare, d.SharedShare = commonBytes/bytes, sharedBytes/bytes
	}
	return places
}

// finding sums up the divergences at one place.
func (d *Diagnosis) finding(at place, list []found) Finding {
	f := Finding{Field: at.field.String(), Kind: at.kind, Share: float64(len(list)) / float64(d.Samples), Remedy: remedy(at)}
	f.Offset = median(list, func(v *found) int { return v.offset })
	f.At = median(list, func(v *found) int { return v.at })
	f.DifferBytes = median(list, func(v *found) int { return v.differ })
	f.AgainBytes = median(list, func(v *found) int { return v.again })
	for i := range list {
		f.SavedTokens += list[i].tokens
		f.SavedPrefillS += list[i].seconds
	}
	each := d.Requests / float64(d.Samples) // requests that a sample stands for
	f.SavedTokens *= each
	f.SavedPrefillS *= each
	return f
}

func median(list []found, of func(*found) int) int {
	values := make([]int, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func remedy(at place) string {
	switch {
	case at.field == prompt.FieldSalt:
		return "requests with different cache_salt share no cache: send the same one for all that may share"
	case at.kind == Order && at.field == prompt.FieldTools:
		return "send the tools in a fixed order, such as by name"
	case at.kind == Order:
		return "put the pieces in a fixed order, such as by name"
	case at.field == prompt.FieldTools:
		return "move what changes out of the descriptions of the tools, into the last message; send the same tools with all requests"
	case at.field == prompt.FieldSystem:
		return "move what changes there (a time, an id, a name) to the end of the system message, or into the last message"
	case at.field == prompt.FieldSettings:
		return "send the same template, its arguments and documents with all requests; put what changes into the last message"
	}
	return "move what changes there (a time, an id, a name) behind what is the same in all requests"
}

// judge needs the figures and findings.
func (d *Diagnosis) judge() {
	cached := 0.0
	if d.PromptTokens > 0 {
		cached = d.CachedTokens / d.PromptTokens
	}
	own := max(cached, d.SharedShare) - d.CommonShare
	switch {
	case d.Samples < leastOf:
		d.Verdict, d.Why = Few, fmt.Sprintf("a verdict needs %d sampled requests", leastOf)
	case len(d.Findings) > 0:
		saved := 0.0
		for _, f := range d.Findings {
			saved += f.SavedTokens
		}
		d.Verdict, d.Why = Mend, fmt.Sprintf("%.0f %% of the prompt tokens are computed again although the engines had their text", 100*saved/max(d.PromptTokens, 1))
	case own < pays:
		d.Verdict = Skip
		d.Why = fmt.Sprintf("most prompts share the first %.0f %%, which every engine has, and %.0f %% beyond it: routing by prefix saves nothing there, and least-request serves as well",
			100*d.CommonShare, 100*max(own, 0))
	default:
		d.Verdict, d.Why = Healthy, fmt.Sprintf("what prompts share, they share from the beginning: %.0f %% of the tokens were cached", 100*cached)
	}
}

// saved is what all findings of an application would save.
func (d *Diagnosis) saved() (seconds, tokens float64) {
	for _, f := range d.Findings {
		seconds += f.SavedPrefillS
		tokens += f.SavedTokens
	}
	return seconds, tokens
}

// sortDiagnoses uses no generic sort, of which the program would hold 20 kB for each of these large types.
func sortDiagnoses(list []Diagnosis) {
	for i := range list {
		f := list[i].Findings
		sort.Slice(f, func(a, b int) bool { return f[a].SavedTokens > f[b].SavedTokens })
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		as, at := a.saved()
		bs, bt := b.saved()
		return cmp.Or(cmp.Compare(bs, as), cmp.Compare(bt, at), cmp.Compare(b.PromptTokens, a.PromptTokens), a.compareTo(b.Application)) < 0
	})
}

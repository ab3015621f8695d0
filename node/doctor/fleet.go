package doctor

import (
	"encoding/json"
	"errors"
	"slices"
	"time"
)

const (
	// maxSection bounds what a node tells its peers, in bytes: the diagnoses of its applications with most to save.
	maxSection = 8 << 10
	// sectionPeriod is how often it does. A diagnosis of 32 applications takes 0.1 s.
	sectionPeriod = time.Minute
)

var errSection = errors.New("malformed doctor's section")

// Section returns the diagnosis of this node's requests for its peers, at most a minute old; nil: no requests. It is called by one goroutine.
func (d *Doctor) Section(now time.Time) []byte {
	if d.section != nil && now.Sub(d.sectionAt) < sectionPeriod {
		return d.section
	}
	d.section, d.sectionAt = nil, now
	list := d.own(now)
	sortDiagnoses(list)
	for n := len(list); n > 0; n /= 2 {
		text, err := json.Marshal(list[:n])
		if err == nil && len(text) <= maxSection { // JSON has no infinities, which no figure should have
			d.section = text
			break
		}
	}
	return d.section
}

// Received replaces what a peer reports. It keeps nothing of section.
func (d *Doctor) Received(origin string, section []byte) error {
	var list []Diagnosis
	if len(section) > 0 {
		if len(section) > maxSection || json.Unmarshal(section, &list) != nil || len(list) > maxApplications {
			return errSection
		}
	}
	for i := range list {
		if !list[i].plausible() {
			return errSection
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(list) == 0 {
		delete(d.peers, origin)
		return nil
	}
	d.peers[origin] = list
	return nil
}

// plausible reports whether figures can be added up.
func (d *Diagnosis) plausible() bool {
	const most = 1e15 // tokens, requests or seconds an hour
	figures := []float64{d.Requests, d.PromptTokens, d.CachedTokens, d.CommonShare, d.SharedShare, d.SeenS, float64(d.Samples)}
	for _, f := range d.Findings {
		figures = append(figures, f.Share, f.SavedTokens, f.SavedPrefillS)
	}
	return len(d.Findings) <= maxFindings && !slices.ContainsFunc(figures, func(f float64) bool { return !(f >= 0 && f <= most) })
}

// DropPeer forgets a peer that has left.
func (d *Doctor) DropPeer(origin string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.peers, origin)
}

// merged adds the peers' diagnoses to this node's, and judges again.
func (d *Doctor) merged(list []Diagnosis) (all []Diagnosis, reporting int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reporting = len(d.peers); len(list) > 0 {
		reporting++
	}
	at := make(map[Application]int)
	add := func(more []Diagnosis) {
		for i := range more {
			k, known := at[more[i].Application]
			if !known {
				k = len(all)
				at[more[i].Application] = k
				all = append(all, Diagnosis{Application: more[i].Application, Findings: []Finding{}})
			}
			all[k].merge(&more[i])
		}
	}
	add(list)
	for _, more := range d.peers {
		add(more)
	}
	for i := range all {
		all[i].judge()
	}
	return all, reporting
}

// merge adds the requests that another node has seen of the same application.
func (d *Diagnosis) merge(o *Diagnosis) {
	share := func(a, b, weightA, weightB float64) float64 {
		if weightA+weightB <= 0 {
			return 0
		}
		return (a*weightA + b*weightB) / (weightA + weightB)
	}
	d.CommonShare = share(d.CommonShare, o.CommonShare, d.PromptTokens, o.PromptTokens)
	d.SharedShare = share(d.SharedShare, o.SharedShare, d.PromptTokens, o.PromptTokens)
	for i := range d.Findings {
		d.Findings[i].Share = share(d.Findings[i].Share, 0, d.Requests, o.Requests)
	}
	for _, f := range o.Findings {
		f.Share = share(0, f.Share, d.Requests, o.Requests)
		d.mergeFinding(f)
	}
	d.Samples += o.Samples
	d.SeenS = max(d.SeenS, o.SeenS)
	d.Requests += o.Requests
	d.PromptTokens += o.PromptTokens
	d.CachedTokens += o.CachedTokens
}

// mergeFinding takes the place from the node that has more to save there.
func (d *Diagnosis) mergeFinding(f Finding) {
	for i := range d.Findings {
		g := &d.Findings[i]
		if g.Field != f.Field || g.Kind != f.Kind {
			continue
		}
		more := f
		if g.SavedTokens > f.SavedTokens {
			more = *g
		}
		more.Share = g.Share + f.Share
		more.SavedTokens = g.SavedTokens + f.SavedTokens
		more.SavedPrefillS = g.SavedPrefillS + f.SavedPrefillS
		*g = more
		return
	}
	d.Findings = append(d.Findings, f)
}

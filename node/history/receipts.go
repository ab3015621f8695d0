package history

import (
	"slices"
	"sync"
	"time"

	"grapevine.example/proxy"
	"grapevine.example/proxy/books"
	"grapevine.example/proxy/policy"
)

const (
	kept   = 256 // receipts, of some 1.3 kB
	maxID  = 128 // bytes of an id that a client chose
	maxTag = 256 // bytes of a path or model
)

// Receipt is what decided about a request that ended, and what came of it. It has no text of the
// prompt.
type Receipt struct {
	At                                       time.Time // its arrival
	ID, Path, Model                          string
	Client, Backend, Strategy, Rung          string
	Status, Attempts, Eligible               int
	PromptTokens, CachedTokens, OutputTokens int // as the engine counts them; -1: unknown
	PredictedTokens                          int
	Failed                                   books.Failure
	Queue, TTFT, Total                       time.Duration
	Candidates                               []policy.Considered // the chosen one first; empty: none decided
}

// Receipts keeps those of the last 256 requests. Safe for concurrent use; it does not allocate per
// request.
type Receipts struct {
	mu    sync.Mutex
	slots [kept]slot
	count uint64
}

// slot holds texts in buffers of its own, which its next request takes over.
type slot struct {
	Receipt
	id, path, model []byte
	candidates      []policy.Considered
}

// Observe keeps the receipt of a finished request; r is valid during the call only.
func (k *Receipts) Observe(r *proxy.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.slots[k.count%kept]
	k.count++
	s.id = append(s.id[:0], r.ID[:min(len(r.ID), maxID)]...)
	s.path = append(s.path[:0], r.Path[:min(len(r.Path), maxTag)]...)
	s.model = append(s.model[:0], r.Model[:min(len(r.Model), maxTag)]...)
	s.Receipt = Receipt{
		At: r.Start, Client: r.Client, Backend: r.Backend, Status: r.Status, Attempts: r.Attempts, Failed: r.Failed,
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, OutputTokens: r.OutputTokens, Queue: r.Queue, TTFT: r.TTFT, Total: r.Total,
	}
	s.candidates = s.candidates[:0]
	if d := r.Decision; d != nil {
		s.Strategy, s.Rung, s.Eligible, s.PredictedTokens = d.Strategy, d.Rung.String(), d.Eligible, d.PredictedTokens
		s.candidates = append(s.candidates, d.Candidates...)
	}
}

// Latest returns copies, the newest first; of requests with this id, unless it is empty.
func (k *Receipts) Latest(id string) (list []Receipt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range min(k.count, kept) {
		s := &k.slots[(k.count-1-i)%kept]
		if id != "" && string(s.id) != id {
			continue
		}
		r := s.Receipt
		r.ID, r.Path, r.Model, r.Candidates = string(s.id), string(s.path), string(s.model), slices.Clone(s.candidates)
		list = append(list, r)
	}
	return list
}

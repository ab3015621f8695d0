package hot

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"grapevine/prefixtree"
	"grapevine/proxy"
	"grapevine/proxy/policy"
	"grapevine/proxy/prompt"
)

const (
	// keptPrompts bounds the stored prompts; newer ones replace those older than keptFor.
	keptPrompts = 8
	keptBytes   = 1 << 20
	keptFor     = time.Minute
	warmLimit   = 5 * time.Second
)

type WarmUp struct {
	// Post fails unless the answer is 200; it returns the backend's number.
	Post     func(ctx context.Context, backend, path string, body []byte) (prefixtree.Backend, error)
	Describe func(path string, body []byte, q *policy.Request) error // hashes a prompt
	Index    policy.Index                                            // learns what the engines hold afterwards
}

// warmer makes engines compute hot prefixes beforehand, from stored prompts. Safe for concurrent
// use.
type warmer struct {
	WarmUp
	log zerolog.Logger

	warmed, failed, unknown atomic.Uint64

	mu   sync.Mutex
	kept map[prefixtree.Hash]keptPrompt
}

type keptPrompt struct {
	path string
	body []byte
	at   time.Time
}

func (w *warmer) observe(r *proxy.Record) {
	d := r.Decision
	if d == nil || d.Replicas == 0 || r.Status != http.StatusOK || len(r.Body) == 0 || r.RequestBytes > keptBytes || r.Kind != prompt.Chat && r.Kind != prompt.Completion {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now()
	if k, ok := w.kept[d.Hot]; ok && at.Sub(k.at) < keptFor {
		return
	}
	w.kept[d.Hot] = keptPrompt{string(r.Path), bytes.Join(r.Body, nil), at}
	for len(w.kept) > keptPrompts {
		oldest := d.Hot
		for anchor, k := range w.kept {
			if k.at.Before(w.kept[oldest].at) {
				oldest = anchor
			}
		}
		delete(w.kept, oldest)
	}
}

func (w *warmer) warm(ctx context.Context, anchor prefixtree.Hash, backends []string) {
	if len(backends) == 0 {
		return
	}
	w.mu.Lock()
	k, ok := w.kept[anchor]
	w.mu.Unlock()
	if !ok {
		w.unknown.Add(uint64(len(backends)))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, warmLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, name := range backends {
		all.Go(func() {
			if err := w.warmOne(ctx, anchor, &k, name); err != nil {
				w.failed.Add(1)
				w.log.Warn().Err(err).Str("backend", name).Str("anchor", AnchorText(anchor)).Msg("warming a hot prefix failed")
				return
			}
			w.warmed.Add(1)
		})
	}
	all.Wait()
}

func (w *warmer) warmOne(ctx context.Context, anchor prefixtree.Hash, k *keptPrompt, name string) error {
	body, err := forOneToken(k.body)
	if err != nil {
		return err
	}
	id, err := w.Post(ctx, name, k.path, body)
	if err != nil {
		return err
	}
	var q policy.Request
	if err := w.Describe(k.path, k.body, &q); err != nil {
		return err
	}
	if i := slices.Index(q.Hashes, anchor); i >= 0 {
		w.Index.Record(id, q.Hashes[:i+1], millis(time.Now()), new(prefixtree.TouchHistory))
	}
	return nil
}

// forOneToken also asks for no stream and no storage, since no client sent this request.
func forOneToken(body []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	for _, name := range []string{"stream", "stream_options", "max_completion_tokens", "min_tokens", "n", "best_of", "store", "metadata"} {
		delete(fields, name)
	}
	fields["max_tokens"] = json.RawMessage("1")
	return json.Marshal(fields)
}

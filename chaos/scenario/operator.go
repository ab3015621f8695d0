package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"grapevine.example/chaos/fleet"
	"grapevine.example/chaos/history"
	"grapevine.example/node/admin"
)

// idleBackends serve a model without traffic and change all the time.
const idleBackends = 8

// Client numbers in the history beyond those that change idle backends.
const (
	scheduledClient = 100
	finalClient     = 200
	starterClient   = 300
)

// operator changes the membership through random nodes. Safe for concurrent use.
type operator struct {
	f      *fleet.Fleet
	models []string
	seed   uint64
	l      *ledger
	log    history.Log

	mu      sync.Mutex
	rng     *rand.Rand
	strange []Violation
	late    []Violation
}

func newOperator(f *fleet.Fleet, models []string, seed uint64, l *ledger) *operator {
	o := &operator{
		f: f, models: models, seed: seed, l: l, rng: rand.New(rand.NewPCG(seed, 0x09e7)),
	}
	for _, e := range f.Engines() {
		o.log.Add(scheduledClient, history.Input{Kind: history.Add, Backend: e.Name()}, o.log.Now(), history.Output{})
	}
	return o
}

// operationPatience is four times the 2 s in which a node reports the loss of the majority.
const operationPatience = 8 * time.Second

func (o *operator) node() *fleet.Node {
	up := o.f.Running()
	if len(up) == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return up[o.rng.IntN(len(up))]
}

func (o *operator) play(ctx context.Context, clients int, pause time.Duration) {
	var work sync.WaitGroup
	for client := range clients {
		rng := rand.New(rand.NewPCG(o.seed, uint64(1000+client)))
		work.Go(func() {
			for sleep(ctx, time.Duration(rng.ExpFloat64()*float64(pause))) == nil {
				if n := o.node(); n != nil {
					in := history.Input{Kind: history.Kind(rng.IntN(history.Kinds)), Backend: fmt.Sprintf("idle-%d", rng.IntN(idleBackends))}
					// The end of the run cancels no operation, so that its outcome is known.
					err := o.do(context.WithoutCancel(ctx), client, n, in, o.idle(in.Backend))
					if other := o.node(); err == nil && in.Kind != history.Read && other != nil {
						// Reads at once; a moment later every node has the change.
						_ = o.do(context.WithoutCancel(ctx), client, other, history.Input{Kind: history.Read, Backend: in.Backend}, admin.NewBackend{})
					}
				}
			}
		})
	}
	work.Wait()
}

// idle is an engine's address with a suffix, which answers probes.
func (o *operator) idle(name string) admin.NewBackend {
	e := o.f.Engines()[0]
	return admin.NewBackend{Name: name, URL: e.URL() + "/" + name, Models: []string{"idle"}}
}

// changeWithin bounds a scheduled change with its retries.
const changeWithin = 20 * time.Second

func (o *operator) change(ctx context.Context, kind history.Kind, e *fleet.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, changeWithin)
	defer cancel()
	for {
		n := o.node()
		err := errors.New("no node runs")
		if n != nil {
			in := history.Input{Kind: kind, Backend: e.Name()}
			err = o.do(ctx, scheduledClient, n, in, admin.NewBackend{Name: e.Name(), URL: e.URL(), Models: o.models})
		}
		if err == nil || errors.Is(err, errRefused) {
			return nil
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%v %s: %w", kind, e.Name(), err)
		}
	}
}

var (
	errRefused = errors.New("nothing to change")
	errNotDone = errors.New("not done")
	errUnknown = errors.New("outcome unknown")
)

// do records an operation, unless it had no effect. An addition needs spec.
func (o *operator) do(ctx context.Context, client int, n *fleet.Node, in history.Input, spec admin.NewBackend) error {
	called, began := o.log.Now(), o.l.now()
	status, text, err := o.send(ctx, n, in, spec)
	var slow net.Error
	if err != nil && ctx.Err() == nil && errors.As(err, &slow) && slow.Timeout() {
		o.note(&o.late, o.l.now(), n, "%v %s was not answered within %v", in.Kind, in.Backend, operationPatience)
	}
	var refusal admin.Refusal
	_ = json.Unmarshal(text, &refusal) // an answer in another format has no reason
	var out history.Output
	var verdict error
	var dial *net.OpError
	switch {
	case err != nil && (in.Kind == history.Read || errors.As(err, &dial) && dial.Op == "dial"):
		return errNotDone
	case err != nil:
		verdict = errUnknown
	case status == http.StatusOK && in.Kind == history.Read:
		var list admin.BackendList
		if verdict = json.Unmarshal(text, &list); verdict != nil {
			o.note(&o.strange, began, n, "%v %s was answered %d: %.300q", in.Kind, in.Backend, status, text)
			return verdict
		}
		for _, b := range list.Backends {
			if b.Name == in.Backend {
				out.Exists, out.Drained = true, b.Drained
			}
		}
	case status == http.StatusOK:
	case status == http.StatusNotFound && in.Kind != history.Add, status == http.StatusConflict && in.Kind == history.Add:
		out.Refused, verdict = true, errRefused
	case status == http.StatusServiceUnavailable && refusal.Reason != "":
		return errNotDone // "nothing was changed", or the node is starting or stopping
	default:
		if status != http.StatusGatewayTimeout || refusal.Reason == "" {
			o.note(&o.strange, began, n, "%v %s was answered %d: %.300q", in.Kind, in.Backend, status, text)
		}
		verdict = errUnknown
	}
	out.Unknown = errors.Is(verdict, errUnknown)
	if !out.Unknown || in.Kind != history.Read {
		o.log.Add(client, in, called, out)
	}
	return verdict
}

func (o *operator) note(list *[]Violation, at time.Duration, n *fleet.Node, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*list = append(*list, Violation{at, n.Name(), fmt.Sprintf(format, args...)})
}

func (o *operator) send(ctx context.Context, n *fleet.Node, in history.Input, spec admin.NewBackend) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, operationPatience)
	defer cancel()
	// force adds engines that do not answer and drains the last one that does.
	switch in.Kind {
	case history.Read:
		return n.Call(ctx, http.MethodGet, "/backends?consistent=true", nil)
	case history.Add:
		return n.Call(ctx, http.MethodPost, "/backends?force=true", map[string]any{"backends": []admin.NewBackend{spec}})
	case history.Remove:
		return n.Call(ctx, http.MethodDelete, "/backends?force=true&name="+url.QueryEscape(in.Backend), nil)
	}
	return n.Call(ctx, http.MethodPatch, "/backends?force=true", map[string]any{"names": []string{in.Backend}, "action": in.Kind.String()})
}

// final reads every changed backend, so that the history ends with the final state.
func (o *operator) final(ctx context.Context, n *fleet.Node) error {
	names := make(map[string]bool)
	for _, op := range o.log.Operations() {
		names[op.Input.(history.Input).Backend] = true
	}
	for name := range names {
		if err := o.do(ctx, finalClient, n, history.Input{Kind: history.Read, Backend: name}, admin.NewBackend{}); err != nil {
			return err
		}
	}
	return nil
}

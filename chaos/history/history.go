// Package history records clients' operations on a fleet's membership and judges with porcupine
// whether they are linearizable.
package history

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

type Kind uint8

const (
	Add Kind = iota
	Drain
	Resume
	Remove
	Read
	Kinds = int(Read) + 1
)

func (k Kind) String() string {
	names := [Kinds]string{"add", "drain", "resume", "remove", "read"}
	if int(k) < Kinds {
		return names[k]
	}
	return fmt.Sprintf("kind %d", k)
}

type Input struct {
	Kind    Kind
	Backend string
}

type Output struct {
	Unknown bool // the outcome is unknown
	Refused bool // the backend exists already, or does not exist
	Exists  bool // of reads, like Drained
	Drained bool
}

// Operation spans nanoseconds since a common zero; an unknown output has no end.
type Operation = porcupine.Operation

type backend struct{ exists, drained bool }

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(Input).Backend
			byName[name] = append(byName[name], op)
		}
		return slices.Collect(maps.Values(byName))
	},
	Init: func() any { return backend{} },
	Step: func(state, input, output any) (bool, any) {
		st, in, out := state.(backend), input.(Input), output.(Output)
		if in.Kind == Read {
			return out.Exists == st.exists && out.Drained == st.drained, st
		}
		next, refused := st.after(in.Kind)
		return out.Unknown || out.Refused == refused, next
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(Input), output.(Output)
		return fmt.Sprintf("%v %s -> %+v", in.Kind, in.Backend, out)
	},
}

func (st backend) after(kind Kind) (next backend, refused bool) {
	switch {
	case kind == Add && st.exists, kind != Add && !st.exists:
		return st, true
	case kind == Add:
		return backend{exists: true}, false
	case kind == Remove:
		return backend{}, false
	}
	return backend{exists: true, drained: kind == Drain}, false
}

// Log records operations; its zero value is ready. Safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	ops   []Operation
	began time.Time
}

func (l *Log) Now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	return int64(time.Since(l.began))
}

// Add records an operation that was called at a time of Now and ends now. An unknown outcome may
// take effect at any later time.
func (l *Log) Add(client int, in Input, called int64, out Output) {
	end := l.Now()
	if out.Unknown {
		end = math.MaxInt64
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, Operation{ClientId: client, Input: in, Call: called, Output: out, Return: end})
}

func (l *Log) Operations() []Operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ops)
}

type Verdict struct {
	Result porcupine.CheckResult // Ok, Illegal, or Unknown if time ran out
	info   porcupine.LinearizationInfo
}

// Judge checks linearizability within a bounded time.
func Judge(ops []Operation, within time.Duration) Verdict {
	result, info := porcupine.CheckOperationsVerbose(model, ops, within)
	return Verdict{result, info}
}

func (v Verdict) OK() bool { return v.Result == porcupine.Ok }

// Draw writes a page of the operations and their partial order.
func (v Verdict) Draw(w io.Writer) error { return porcupine.Visualize(model, v.info, w) }

// Package history records what clients of a fleet's membership asked for and were told, and judges whether a store that does one thing
// after the other could have told them that (linearizability, by porcupine).
//
// It knows nothing of how the operations are made: raftstore's tests make them in their own process, the chaos harness over the admin APIs of
// real nodes.
package history

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what an operation does to its backend.
type Kind uint8

// The operations. Each is on one backend.
const (
	Add Kind = iota
	Drain
	Resume
	Remove
	Read
	Kinds = int(Read) + 1 // how many there are
)

func (k Kind) String() string {
	names := [Kinds]string{"add", "drain", "resume", "remove", "read"}
	if int(k) < Kinds {
		return names[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// Input is what was asked for.
type Input struct {
	Kind    Kind
	Backend string
}

// Output is what was said.
type Output struct {
	Unknown bool // nobody can know whether it was carried out
	Refused bool // the backend exists already, or does not exist
	Exists  bool // of reads, like Drained
	Drained bool
}

// Operation is an input and its output with the span in which it was carried out, in nanoseconds since any common beginning. An unknown
// output has no end: see Log.Add.
type Operation = porcupine.Operation

// backend is one backend of a store that does one thing after the other.
type backend struct{ exists, drained bool }

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(Input).Backend
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
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

// after is what an operation makes of a backend, and whether it is refused.
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

// Log records operations. The zero value is empty. Safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	ops   []Operation
	began time.Time
}

// Now is the time of an operation, to be given to Add.
func (l *Log) Now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began.IsZero() {
		l.began = time.Now()
	}
	return int64(time.Since(l.began))
}

// Add records an operation that was called at a time of Now and has returned now. One whose outcome is unknown may still be carried out at
// any later time.
func (l *Log) Add(client int, in Input, called int64, out Output) {
	end := l.Now()
	if out.Unknown {
		end = math.MaxInt64
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, Operation{ClientId: client, Input: in, Call: called, Output: out, Return: end})
}

// Operations returns what was recorded so far.
func (l *Log) Operations() []Operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Operation(nil), l.ops...)
}

// Verdict is a judgement of a history.
type Verdict struct {
	Result porcupine.CheckResult // Ok, Illegal, or Unknown: the time was too short
	info   porcupine.LinearizationInfo
}

// Judge says whether operations are linearizable, within a bounded time.
func Judge(ops []Operation, within time.Duration) Verdict {
	result, info := porcupine.CheckOperationsVerbose(model, ops, within)
	return Verdict{result, info}
}

// OK says that they are.
func (v Verdict) OK() bool { return v.Result == porcupine.Ok }

// Draw writes a page that shows the operations and how far they can be put in an order.
func (v Verdict) Draw(w io.Writer) error { return porcupine.Visualize(model, v.info, w) }

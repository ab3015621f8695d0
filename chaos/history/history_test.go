package history

import (
	"bytes"
	"math"
	"testing"
	"time"
)

func TestJudgeFindsFaults(t *testing.T) {
	op := func(kind Kind, call, end int64, out Output) Operation {
		return Operation{Input: Input{kind, "b"}, Call: call, Return: end, Output: out}
	}
	for _, c := range []struct {
		name    string
		history []Operation
		ok      bool
	}{
		{"in order", []Operation{op(Add, 1, 2, Output{}), op(Read, 3, 4, Output{Exists: true})}, true},
		{"lost write", []Operation{op(Add, 1, 2, Output{}), op(Read, 3, 4, Output{})}, false},
		{"stale read", []Operation{
			op(Add, 1, 2, Output{}), op(Drain, 3, 4, Output{}), op(Read, 5, 6, Output{Exists: true}),
		}, false},
		{"twice", []Operation{op(Add, 1, 2, Output{}), op(Add, 3, 4, Output{})}, false},
		{"drain of nothing", []Operation{op(Drain, 1, 2, Output{}), op(Read, 3, 4, Output{})}, false},
		{"unknown, done later", []Operation{
			op(Add, 1, math.MaxInt64, Output{Unknown: true}), op(Read, 2, 3, Output{}), op(Read, 4, 5, Output{Exists: true}),
		}, true},
		{"unknown, undone", []Operation{
			op(Add, 1, math.MaxInt64, Output{Unknown: true}), op(Read, 2, 3, Output{Exists: true}), op(Read, 4, 5, Output{}),
		}, false},
	} {
		if got := Judge(c.history, time.Minute); got.OK() != c.ok {
			t.Errorf("%s: %v", c.name, got.Result)
		}
	}
}

func TestLog(t *testing.T) {
	var l Log
	at := l.Now()
	l.Add(1, Input{Add, "b"}, at, Output{})
	l.Add(2, Input{Drain, "b"}, l.Now(), Output{Unknown: true})
	ops := l.Operations()
	if len(ops) != 2 || ops[0].Call != at || ops[0].Return < at || ops[1].Return != math.MaxInt64 || ops[1].ClientId != 2 {
		t.Errorf("%+v", ops)
	}
	var page bytes.Buffer
	if v := Judge(ops, time.Minute); !v.OK() || v.Draw(&page) != nil || page.Len() == 0 {
		t.Errorf("%v, a page of %d bytes", v.Result, page.Len())
	}
	if Kind(9).String() != "kind 9" || Resume.String() != "resume" {
		t.Error("names of kinds")
	}
}

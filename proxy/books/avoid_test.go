package books

import (
	"testing"

	"grapevine.example/prefixtree"
)

// failing returns a function that makes another request fail at once; any may eject the engine.
func failing(e *Engine) func(f Failure, now prefixtree.Time) {
	request := uint64(0)
	return func(f Failure, now prefixtree.Time) {
		request++
		e.Fail(f, request, true, now, now)
	}
}

func avoided(e *Engine, now prefixtree.Time) bool {
	_, is := e.Avoided(now)
	return is
}

func TestAnAnswerEndsAStrike(t *testing.T) {
	_, e := one()
	fail := failing(e)
	fail(Reset, t0)
	e.Answered(t0+1, t0+1)
	fail(Reset, t0+2)
	fail(Reset, t0+3+strikeLasts)
	if avoided(e, t0+4+strikeLasts) {
		t.Error("left alone")
	}
}

func TestAProbeEndsAnEjection(t *testing.T) {
	twice := func(e *Engine, f Failure, now prefixtree.Time) {
		fail := failing(e)
		fail(f, now)
		fail(f, now)
	}
	for f, ends := range map[Failure]bool{Connect: true, Reset: true, Timeout: true, Status5xx: false} {
		_, e := one()
		twice(e, f, t0)
		e.Lives(t0 - 1)
		if !avoided(e, t0+6) {
			t.Errorf("%v: a probe from before the failure ended the ejection", f)
		}
		e.Lives(t0 + 1)
		if got := !avoided(e, t0+8); got != ends {
			t.Errorf("%v: a good probe ends the ejection: %v, want %v", f, got, ends)
		}
	}
	_, e := one()
	twice(e, Reset, t0)
	e.Lives(t0 + 1)
	e.Fail(Reset, 3, true, t0+3, t0+3)
	e.Lives(t0 + 4)
	if !avoided(e, t0+6) {
		t.Error("it answers probes and no requests, and gets them all the same")
	}
	e.Lives(t0 + 3_000)
	if avoided(e, t0+3_002) {
		t.Error("a probe after the back-off does not end the ejection")
	}
}

func TestOneCrashIsOneFailure(t *testing.T) {
	_, e := one()
	for i := range 20 {
		e.Fail(Reset, uint64(i+1), true, t0, t0+prefixtree.Time(i))
	}
	if until, _ := e.Avoided(t0 + 20); until != t0+1001 {
		t.Errorf("20 requests lost in one crash: back-off until %d ms, want 1001", until-t0)
	}
}

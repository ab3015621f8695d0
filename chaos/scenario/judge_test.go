package scenario

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/history"
	"grapevine.example/node/admin"

	"grapevine.example/chaos/fleet"
)

const sec = time.Second

func evident() *evidence {
	e := &evidence{
		nodes: fleet.Names("node", 3), engines: fleet.Names("engine", 2), visits: make(map[string][]visit), seen: make(map[string]*seen),
		calm: 4 * sec, struck: 12 * sec, healed: 17 * sec, stopped: 30 * sec, drained: 31 * sec, limit: 10 * sec,
		quiet: quiet{zero: sec, counted: 9, converged: sec, facts: 100, compared: 3, after: make(map[string]resources)},
	}
	e.marks = []Mark{
		{Event: event(12*sec, 5*sec, "kill node-1"), Members: [][]string{{"node-1"}}, Began: 12 * sec, Struck: 12 * sec, Ending: 17 * sec, Over: 17 * sec},
		{Event: event(20*sec, 0, "roll node-2"), Members: [][]string{{"node-2"}}, Began: 20 * sec, Struck: 23 * sec, Ending: -1, Over: 23 * sec, Steps: []Step{
			{"node-2", "asked to stop", 20 * sec}, {"node-2", "gone", 22 * sec}, {"node-2", "started", 22 * sec}, {"node-2", "ready", 23 * sec}}},
		{Event: event(24*sec, sec, "remove engine-1"), Members: [][]string{{"engine-1"}}, Began: 24 * sec, Struck: 24 * sec, Ending: 25 * sec, Over: 25 * sec},
		{Event: event(25400*time.Millisecond, 500*time.Millisecond, "mute engine-0"), Members: [][]string{{"engine-0"}}, Began: 25400 * time.Millisecond,
			Struck: 25400 * time.Millisecond, Ending: 25900 * time.Millisecond, Over: 25900 * time.Millisecond},
	}
	e.forecasts = []forecast{{"node-0", "engine-0", "a1", 0, sec, 960, 960, 1000}}
	for i, n := range e.nodes {
		s := &seen{
			backends: map[string]*track[string]{"engine-0": {}, "engine-1": {}}, caches: map[string]*track[string]{"engine-0": {}, "engine-1": {}},
			first: make(map[int]meeting),
		}
		s.caches["engine-0"].note(span{0, sec}, "exact")
		s.caches["engine-1"].note(span{0, sec}, absent)
		s.ready.note(span{0, sec}, readiness{true, i})
		s.raft.note(span{0, sec}, leadership{id: fmt.Sprint(i), leader: "0", term: 1})
		s.raft.note(span{15 * sec, 16 * sec}, leadership{id: fmt.Sprint(i), leader: "2", term: 2})
		s.backends["engine-1"].note(span{0, sec}, "active")
		s.backends["engine-1"].note(span{24 * sec, 24 * sec}, absent)
		s.backends["engine-1"].note(span{25 * sec, 25 * sec}, absent)
		s.usage = []resources{{at: 8 * sec, used: [len(measures)]float64{goroutines: 80, files: 50, heap: 20 << 20, resident: 50 << 20}, waited: 3}}
		e.quiet.after[n] = resources{used: [len(measures)]float64{goroutines: 70, files: 50, heap: 30 << 20, resident: 60 << 20}}
		e.seen[n] = s
	}
	two := e.seen["node-2"]
	two.ready.note(span{19 * sec, 20 * sec}, readiness{true, 2})
	two.ready.note(span{20100 * time.Millisecond, 20200 * time.Millisecond}, readiness{false, 2})
	two.ready.note(span{23 * sec, 23 * sec}, readiness{true, 12})
	two.first[12] = meeting{ready: span{23 * sec, 23 * sec}, warm: 1, backends: 2, version: true}
	for i := range 300 {
		at := time.Duration(i) * 100 * time.Millisecond
		a := &Attempt{ID: fmt.Sprint("a", i), Request: i, Last: true, Turn: 2, Shape: chatStream, Sent: at, Head: at + 1, First: at + 2, End: at + 50*time.Millisecond,
			Node: e.nodes[i%3], Backend: "engine-0", Outcome: Complete, Status: 200, Text: 40, Want: 40, Prompt: 1000, Cached: 990, Output: 10, Possible: 1000, Kept: at, By: "engine-0"}
		if a.Node == "node-1" && at > 11900*time.Millisecond && at < 17*sec {
			a.Node = "node-0"
		}
		if i%50 == 7 {
			a.Outcome, a.Text = Departed, 8
		}
		e.attempts = append(e.attempts, a)
		e.visits[a.ID] = []visit{{Engine: "engine-0", Began: at, Ended: a.End, Departed: a.Outcome == Departed}}
	}
	op := func(kind history.Kind, at int64, out history.Output) {
		e.history = append(e.history, history.Operation{Input: history.Input{Kind: kind, Backend: "b"}, Call: at, Return: at + 1, Output: out})
	}
	op(history.Add, 1, history.Output{})
	op(history.Drain, 3, history.Output{})
	op(history.Remove, 5, history.Output{})
	op(history.Read, 7, history.Output{})
	e.clients, e.wait, e.places = []Client{{Name: "a"}, {Name: "b", Weight: 2}, {Name: "limited", InFlight: 2}}, 10*sec, 2
	e.attempts[8].End += 300 * time.Millisecond
	e.visits["a8"][0] = visit{Engine: "engine-0", Began: e.attempts[8].Sent + 200*time.Millisecond, Ended: e.attempts[8].End}
	for i := range 300 { // each waits a second; b gets twice as much
		at := time.Duration(i) * 100 * time.Millisecond
		e.past.stays = append(e.past.stays, stay{sent: at, began: at + sec, end: at + 2*sec, tokens: 100, client: 0},
			stay{sent: at, began: at + sec, end: at + 2*sec, tokens: 200, client: 1})
	}
	for i := range 10 {
		at := time.Duration(i) * 3 * sec
		e.past.stays = append(e.past.stays, stay{sent: at, began: at + 1, end: at + 3*sec, client: 2, admitted: true}, stay{sent: at + sec, began: at + sec, end: at + 2*sec, client: 2, admitted: true})
	}
	for _, at := range []time.Duration{4 * sec, 7 * sec} { // on a busy machine their client sees late that they ended
		for range 3 {
			e.past.stays = append(e.past.stays, stay{sent: at, began: at, left: at + 200*time.Millisecond, end: 9 * sec, client: 2, admitted: true})
		}
	}
	return e
}

// verdicts folds a copy of evidence that is not whole, so that a test can change and judge it again.
func verdicts(e *evidence) map[string]Verdict {
	if e.past.findings == nil {
		again := *e
		e = again.whole()
	}
	out := make(map[string]Verdict)
	for _, v := range judgeAll(e, nil) {
		out[v.Name] = v
	}
	return out
}

func TestNothingWrong(t *testing.T) {
	for name, v := range verdicts(evident()) {
		if v.State != Held || v.Checked == 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestEveryPromiseCanBreak(t *testing.T) {
	last := func(e *evidence) *Attempt { return e.attempts[len(e.attempts)-1] }
	set := func(o Outcome) func(*evidence) {
		return func(e *evidence) {
			a := last(e)
			a.Outcome, a.Text, a.Detail = o, 7, "for a reason"
			e.visits[a.ID][0].Departed = true
		}
	}
	for _, c := range []struct {
		what     string
		harm     func(*evidence)
		violated []string
	}{
		{"no end", set(Silent), []string{"one-outcome", "streams-survive", "requests-answered"}},
		{"an end without its mark", set(Truncated), []string{"one-outcome", "streams-survive", "requests-answered"}},
		{"nonsense", set(Malformed), []string{"one-outcome", "streams-survive", "requests-answered"}},
		{"foreign bytes", set(Foreign), []string{"no-foreign-bytes", "streams-survive", "requests-answered"}},
		{"a broken answer", set(Broken), []string{"streams-survive", "requests-answered"}},
		{"an error event", set(ErrorEvent), []string{"streams-survive", "requests-answered"}},
		{"a refusal", set(Refused), []string{"requests-answered"}},
		{"no answer at the last try", func(e *evidence) {
			set(Unanswered)(e)
			last(e).Head, last(e).Node, last(e).Backend = -1, "", ""
			delete(e.visits, last(e).ID)
		}, []string{"requests-answered"}},
		{"cut before the answer began, and made good by the next try", func(e *evidence) {
			set(Unanswered)(e)
			last(e).Head, last(e).Node, last(e).Backend, last(e).Last = -1, "", "", false
		}, []string{"streams-survive"}},
		{"no answer to an operator", func(e *evidence) { e.late = []Violation{{At: 29 * sec, Place: "node-0"}} }, []string{"membership-kept"}},
		{"served twice", func(e *evidence) {
			e.visits["a9"] = append(e.visits["a9"], visit{Engine: "engine-0", Began: sec, Ended: sec})
		}, []string{"one-outcome"}},
		{"served twice, though it was left", func(e *evidence) {
			e.visits["a7"][0].Departed = false
			e.visits["a7"] = append(e.visits["a7"], visit{Engine: "engine-1", Began: e.attempts[7].Sent + 1, Ended: e.attempts[7].End})
		}, []string{"one-outcome"}},
		{"served again too early, by a third", func(e *evidence) {
			e.visits["a9"] = append(e.visits["a9"], visit{Engine: "engine-1", Began: e.attempts[9].Sent + firstByte, Ended: 9 * sec},
				visit{Engine: "engine-0", Began: e.attempts[9].Sent + firstByte + sec, Ended: 9 * sec})
		}, []string{"one-outcome"}},
		{"served again by one it does not name", func(e *evidence) {
			e.visits["a9"] = append(e.visits["a9"], visit{Engine: "engine-1", Began: e.attempts[9].Sent + firstByte, Ended: 9 * sec})
		}, []string{"one-outcome"}},
		{"served by no engine", func(e *evidence) { delete(e.visits, "a9") }, []string{"one-outcome"}},
		{"served by another", func(e *evidence) { e.visits["a9"][0].Engine = "engine-1" }, []string{"one-outcome"}},
		{"a request that no client sent", func(e *evidence) { e.visits["?"] = []visit{{Engine: "engine-0"}} }, []string{"one-outcome"}},
		{"a request to a removed engine", func(e *evidence) {
			e.visits["a248"] = append(e.visits["a248"], visit{Engine: "engine-1", Began: 24800 * time.Millisecond, Ended: 24900 * time.Millisecond, Departed: true})
		}, []string{"removed-stay-quiet"}},
		{"a lost change", func(e *evidence) { e.history[3].Output = history.Output{Exists: true} }, []string{"membership-kept"}},
		{"an answer that says nothing", func(e *evidence) { e.strange = []Violation{{Evidence: "500"}} }, []string{"membership-kept"}},
		{"two leaders named in a term", func(e *evidence) {
			e.seen["node-1"].raft.note(span{16 * sec, 16 * sec}, leadership{id: "1", leader: "1", term: 2})
		}, []string{"one-leader-per-term"}},
		{"two that lead in a term", func(e *evidence) {
			e.seen["node-1"].raft.note(span{16 * sec, 16 * sec}, leadership{id: "1", role: "leader", term: 2})
		}, []string{"one-leader-per-term"}},
		{"trees that differ", func(e *evidence) { e.quiet.differ, e.quiet.most = "node-0 has 3", 100 }, []string{"trees-converge"}},
		{"batches that a node has not applied", func(e *evidence) { e.quiet.behind = "node-1 has 3 batches" }, []string{"trees-converge"}},
		{"trees that agree too late", func(e *evidence) { e.quiet.converged = convergeBound + 1 }, []string{"trees-converge"}},
		{"fewer hits after a loss", func(e *evidence) {
			e.marks[0].Ending, e.marks[0].Over = 19*sec, 19*sec
			for i, a := range e.attempts[140:220] {
				a.Cached, a.Sent = 500, 14*sec+time.Duration(i)*sec/30
			}
		}, []string{"hit-rate-recovers"}},
		{"fewer hits after all", func(e *evidence) {
			for i, a := range e.attempts[220:] {
				a.Cached = 990 * (i % 3) / 2
			}
		}, []string{"hit-rate-recovers"}},
		{"a stream that does not come back", func(e *evidence) {
			e.seen["node-0"].caches["engine-0"].note(span{26 * sec, 26 * sec}, "predicted")
		}, []string{"caches-are-known"}},
		{"a restarted node that knows a cache in part", func(e *evidence) {
			e.seen["node-1"].caches["engine-0"].note(span{18 * sec, 18 * sec}, "degraded")
			e.seen["node-1"].caches["engine-0"].note(span{24 * sec, 24 * sec}, "exact")
		}, []string{"caches-are-known"}},
		{"a cache without what it should hold", func(e *evidence) { e.forecasts[0].held = 0 }, []string{"caches-are-known"}},
		{"a client that gets a quarter of its share", func(e *evidence) {
			for i := range e.past.stays {
				if e.past.stays[i].client == 1 {
					e.past.stays[i].tokens = 50
				}
			}
		}, []string{"share-kept"}},
		{"more requests in flight than a limit allows", func(e *evidence) {
			for range 5 {
				e.past.stays = append(e.past.stays, stay{sent: 20 * sec, began: 20 * sec, end: 23 * sec, client: 2, admitted: true})
			}
		}, []string{"limit-kept"}},
		{"more requests at an engine than it has places", func(e *evidence) {
			for range 6 {
				e.past.held = append(e.past.held, held{began: 20 * sec, ended: 21 * sec, engine: 1})
			}
		}, []string{"places-kept"}},
		{"a request that stays in a queue", func(e *evidence) {
			last(e).End, last(e).Node = last(e).Sent+16*sec, "node-0"
			set(Silent)(e)
			delete(e.visits, last(e).ID)
		}, []string{"one-outcome", "streams-survive", "requests-answered", "waits-end"}},
		{"an engine long after queue_timeout", func(e *evidence) {
			last(e).End, last(e).Node = last(e).Sent+17*sec, "node-0"
			e.visits[last(e).ID][0].Began, e.visits[last(e).ID][0].Ended = last(e).Sent+16*sec, last(e).End
		}, []string{"waits-end"}},
		{"an engine that goes on", func(e *evidence) { e.visits["a7"][0].Ended = e.attempts[7].End + 1100*time.Millisecond }, []string{"departures-end"}},
		{"an engine that never ends", func(e *evidence) { e.visits["a7"][0].Ended = -1 }, []string{"departures-end"}},
		{"a request long after its client left", func(e *evidence) {
			e.visits["a7"] = append(e.visits["a7"], visit{Engine: "engine-0", Began: 9 * sec, Ended: 9 * sec, Departed: true})
		}, []string{"departures-end"}},
		{"a count that stays", func(e *evidence) { e.quiet.left = []Violation{{0, "node-0", "1 requests in flight"}} }, []string{"counts-return"}},
		{"goroutines that stay", func(e *evidence) { e.quiet.after["node-0"] = resources{used: [len(measures)]float64{goroutines: 400}} }, []string{"resources-return"}},
		{"descriptors that stay", func(e *evidence) { e.quiet.after["node-0"] = resources{used: [len(measures)]float64{files: 400}} }, []string{"resources-return"}},
		{"memory that stays", func(e *evidence) { e.quiet.after["node-0"] = resources{used: [len(measures)]float64{heap: 100 << 20}} }, []string{"resources-return"}},
		{"ready while it drains", func(e *evidence) {
			e.seen["node-2"].ready.list[0].last = span{20300 * time.Millisecond, 20400 * time.Millisecond}
		}, []string{"ready-is-true"}},
		{"ready and not", func(e *evidence) {
			e.seen["node-2"].first[12] = meeting{warm: 1, backends: 2, version: true, status: "warming up"}
		}, []string{"ready-is-true"}},
		{"ready and cold", func(e *evidence) { e.seen["node-2"].first[12] = meeting{warm: 0.5, backends: 2, version: true} }, []string{"ready-is-true"}},
		{"ready without engines", func(e *evidence) { e.seen["node-2"].first[12] = meeting{warm: 1, version: true} }, []string{"ready-is-true"}},
		{"ready without agreement", func(e *evidence) {
			e.seen["node-2"].first[12] = meeting{ready: span{23 * sec, 23 * sec}, warm: 1, backends: 2}
		}, []string{"ready-is-true"}},
		{"a node that died", func(e *evidence) { e.died = []Violation{{Evidence: "exit 2"}} }, []string{"nodes-live"}},
		{"a node that does not come back", func(e *evidence) { e.marks[0].Failed = "not ready" }, []string{"nodes-live"}},
	} {
		e := evident()
		c.harm(e)
		want := make(map[string]bool)
		for _, name := range c.violated {
			want[name] = true
		}
		for name, v := range verdicts(e) {
			if (v.State == Violated) != want[name] {
				t.Errorf("%s: %s is %s, %+v", c.what, name, v.State, v.Violations)
			}
		}
	}
}

func TestExcuses(t *testing.T) {
	broken := func(e *evidence, at time.Duration, node, engine string, as Outcome) *Attempt {
		a := &Attempt{ID: "x", Last: true, Shape: chatStream, Sent: at, Head: at + 1, First: at + 2, End: at + 200*time.Millisecond, Node: node, Backend: engine, Outcome: as, Text: 3, Want: 40}
		e.attempts = append(e.attempts, a)
		e.visits["x"] = []visit{{Engine: engine, Began: at, Ended: a.End, Departed: true}}
		return a
	}
	crash := Mark{Event: event(26*sec, sec, "crash engine-0"), Members: [][]string{{"engine-0"}}, Began: 26 * sec, Struck: 26 * sec, Ending: 27 * sec, Over: 27 * sec}
	link := func(line string) Mark {
		ev := event(25*sec, 2*sec, "link %s", line)
		return Mark{Event: ev, Members: ev.Groups, Began: 25 * sec, Struck: 25 * sec, Ending: 27 * sec, Over: 27 * sec}
	}
	for _, c := range []struct {
		what    string
		harm    func(*evidence)
		excused bool
	}{
		{"an answer of the node that was killed", func(e *evidence) { broken(e, 11900*time.Millisecond, "node-1", "engine-0", Broken) }, true},
		{"an answer of another node", func(e *evidence) { broken(e, 11900*time.Millisecond, "node-0", "engine-0", Broken) }, false},
		{"before the kill", func(e *evidence) { broken(e, 11*sec, "node-1", "engine-0", Broken) }, false},
		{"after the return", func(e *evidence) { broken(e, 18*sec, "node-1", "engine-0", Broken) }, false},
		{"no answer had begun", func(e *evidence) { broken(e, 11900*time.Millisecond, "node-1", "", Unanswered).Head = -1 }, false},
		{"a refusal by the node", func(e *evidence) { broken(e, 11900*time.Millisecond, "node-1", "", Refused) }, false},
		{"an error event of a crash", func(e *evidence) { broken(e, 25900*time.Millisecond, "node-0", "engine-0", ErrorEvent) }, true},
		{"a stream that a crash just breaks", func(e *evidence) { broken(e, 25900*time.Millisecond, "node-0", "engine-0", Broken) }, false},
		{"a whole answer that a crash breaks", func(e *evidence) { broken(e, 25900*time.Millisecond, "node-0", "engine-0", Broken).Shape = chatWhole }, true},
		{"an error event of another engine", func(e *evidence) { broken(e, 25900*time.Millisecond, "node-0", "engine-1", ErrorEvent) }, false},
		{"cut within the limit of a drain", func(e *evidence) { broken(e, 20100*time.Millisecond, "node-2", "engine-0", Broken) }, false},
		{"cut beyond it", func(e *evidence) {
			broken(e, 19900*time.Millisecond, "node-2", "engine-0", Broken).End = 30100 * time.Millisecond
		}, true},
		{"a break by a link of another node", func(e *evidence) {
			e.marks = append(e.marks, link("node-0 > * loss=1"))
			broken(e, 26*sec, "node-2", "engine-1", Broken)
		}, false},
		{"a break by a link of its own", func(e *evidence) {
			e.marks = append(e.marks, link("node-2 > * loss=1"))
			broken(e, 26*sec, "node-2", "engine-1", Broken)
		}, true},
		{"a break by a link to it", func(e *evidence) {
			e.marks = append(e.marks, link("clients > node-2 loss=0.5"))
			broken(e, 26*sec, "node-2", "engine-1", Broken)
		}, true},
		{"a break by a link among routers", func(e *evidence) {
			e.marks = append(e.marks, link("node-2 > node-0 loss=1"))
			broken(e, 26*sec, "node-2", "engine-1", Broken)
		}, false},
		{"a break while links lose little", func(e *evidence) {
			e.marks = append(e.marks, link("* > * loss=0.04 delay=10ms"))
			broken(e, 26*sec, "node-2", "engine-1", Broken)
		}, false},
		{"cut before it began, somewhere, while a node was killed", func(e *evidence) {
			a := broken(e, 11900*time.Millisecond, "", "", Unanswered)
			a.Head, a.Last = -1, false
		}, true},
		{"no answer to an operator from a node that was killed", func(e *evidence) { e.late = []Violation{{At: 16 * sec, Place: "node-1"}} }, true},
		{"served again after a router's patience", func(e *evidence) {
			e.visits["a9"] = append(e.visits["a9"], visit{Engine: "engine-0", Began: e.attempts[9].Sent + firstByte, Ended: 9 * sec})
		}, true},
	} {
		e := evident()
		e.marks = append(e.marks, crash)
		c.harm(e)
		v := verdicts(e)
		got := v[streamsSurvive.Name].State == Held && v[requestsAnswered.Name].State == Held && v[oneOutcome.Name].State == Held && v[membershipKept.Name].State == Held
		if got != c.excused {
			t.Errorf("%s: excused is %v: %+v %+v", c.what, got, v[streamsSurvive.Name].Violations, v[requestsAnswered.Name].Violations)
		}
	}
}

func TestSharesWhileARouterIsHarmed(t *testing.T) {
	for what, want := range map[string]State{"pause node-0": Held, "kill node-0": Violated} {
		e := evident()
		e.marks = append(e.marks, Mark{Event: event(17*sec, 11*sec, "%s", what), Members: [][]string{{"node-0"}}, Began: 17 * sec, Struck: 17 * sec, Ending: 28 * sec, Over: 28 * sec})
		for i := range e.past.stays {
			if s := &e.past.stays[i]; s.client == 1 && s.began >= 20*sec && s.began < 26*sec {
				s.tokens = 50
			}
		}
		if v := verdicts(e)[shareKept.Name]; v.State != want || v.Checked == 0 {
			t.Errorf("a quarter of a share during %s: %+v", what, v)
		}
	}
}

func TestWorkAtAnEngineThatLies(t *testing.T) {
	e := evident()
	a := e.attempts[200]
	a.Client = "a"
	for _, want := range []float32{20, 10} {
		if s, ok := e.stayOf(a); !ok || s.tokens != want {
			t.Errorf("%v tokens, want %v", s.tokens, want)
		}
		e.marks = append(e.marks, Mark{Event: event(19*sec, 2*sec, "lie engine-0"), Members: [][]string{{"engine-0"}}, Began: 19 * sec, Over: 21 * sec})
	}
}

// A client whose requests are refused within a second had none that waited.
func TestRefusedDoNotWait(t *testing.T) {
	for took, want := range map[time.Duration]State{800 * time.Millisecond: NotExercised, 5 * sec: Violated} {
		e := evident()
		e.clients, e.past.stays = []Client{{Name: "a"}, {Name: "b"}}, nil
		for i := range 300 {
			at := time.Duration(i) * 100 * time.Millisecond
			e.past.stays = append(e.past.stays, stay{sent: at, began: at + sec, end: at + 2*sec, tokens: 100, client: 0},
				stay{sent: at, began: -1, end: at + took, client: 1, refused: true})
		}
		if v := verdicts(e)[shareKept.Name]; v.State != want {
			t.Errorf("refused after %v: %+v", took, v)
		}
	}
	e := evident()
	a := e.attempts[200]
	a.Client, a.Outcome = "a", Refused
	if s, ok := e.stayOf(a); !ok || !s.refused {
		t.Errorf("a refused attempt: %+v", s)
	}
}

// A node that stops may close a kept connection on which a request has just come, but drops nothing from its queue.
func TestCutWhileANodeStops(t *testing.T) {
	for _, c := range []struct {
		what   string
		after  time.Duration
		reused bool
		want   State
	}{
		{"a kept connection", 200 * time.Millisecond, true, Held},
		{"a kept connection after 3 s", 3 * sec, true, Violated},
		{"a new connection", 200 * time.Millisecond, false, Violated},
	} {
		e := evident()
		a := e.attempts[205] // node-2 is asked to stop at 20 s
		delete(e.visits, a.ID)
		a.Outcome, a.Status, a.Head, a.Node, a.Backend, a.Last, a.Reused, a.End = Unanswered, 0, -1, "", "", false, c.reused, a.Sent+c.after
		if v := verdicts(e)[waitsEnd.Name]; v.State != c.want {
			t.Errorf("%s: %+v", c.what, v)
		}
	}
}

func TestQueued(t *testing.T) {
	e := evident()
	e.seen["node-0"].usage = []resources{{pid: 1, waited: 4}, {pid: 1, waited: 40}, {pid: 2}, {pid: 2, waited: 200}}
	if n := e.queued(); n != 246 {
		t.Errorf("%v requests waited at two processes of a node and at two other nodes, want 246", n)
	}
	for _, s := range e.seen {
		s.usage = nil
	}
	if v := verdicts(e)[waitsEnd.Name]; v.State != NotExercised {
		t.Errorf("nothing waited in a queue: %+v", v)
	}
}

func TestNotExercised(t *testing.T) {
	e := evident()
	e.marks, e.struck, e.healed = nil, e.stopped, e.stopped
	e.attempts, e.visits, e.history = nil, nil, nil
	e.quiet, e.forecasts, e.past = quiet{}, nil, past{}
	for _, s := range e.seen {
		s.raft, s.first, s.backends = track[leadership]{}, nil, nil
	}
	for name, v := range verdicts(e) {
		if v.State != NotExercised && name != nodesLive.Name {
			t.Errorf("%s: %s, %d checked", name, v.State, v.Checked)
		}
	}
}

func TestShareOfHits(t *testing.T) {
	wide := func(missed func(i int) bool) share {
		e := &evidence{}
		for i := range 400 {
			a := &Attempt{Outcome: Complete, Possible: 1000, Cached: 1000, Sent: time.Duration(i) * sec / 4, By: "engine-0"}
			if missed(i) {
				a.Cached = 0
			}
			e.attempts = append(e.attempts, a)
		}
		e.attempts = append(e.attempts, &Attempt{Outcome: Complete, Sent: 1}, &Attempt{Outcome: Broken, Possible: 9, Sent: 1}, &Attempt{Outcome: Complete, Possible: 9, Cached: -1, Sent: 1})
		return e.whole().past.hits(0, 400*sec)
	}
	even, bursts := wide(func(i int) bool { return i%4 == 0 }), wide(func(i int) bool { return i%16 < 4 })
	if even.turns != 400 || math.Abs(even.mean-0.75) > 1e-9 || even.wide > 1e-9 {
		t.Errorf("one of four in every second: %+v", even)
	}
	if want := math.Sqrt(0.75 * 0.25 / 100); math.Abs(bursts.mean-0.75) > 1e-9 || math.Abs(bursts.wide-want) > 1e-6 {
		t.Errorf("one of four seconds: %+v, want an error of %v", bursts, want)
	}
	e := &evidence{marks: []Mark{{Event: event(0, 0, "amnesia engine-0"), Members: [][]string{{"engine-0"}}, Began: 5, Struck: 5, Over: 5}}}
	for i := range time.Duration(10) {
		e.attempts = append(e.attempts, &Attempt{Outcome: Complete, Possible: 9, Sent: i, By: "engine-0"})
	}
	if s := e.whole().past.hits(0, sec); s.turns != 5 {
		t.Errorf("%d turns of an engine that forgot meanwhile", s.turns)
	}
}

func TestForgottenCaches(t *testing.T) {
	e := evident()
	e.marks = []Mark{{Event: event(13*sec, 0, "amnesia engine-0"), Members: [][]string{{"engine-0"}}, Began: 13 * sec, Struck: 13 * sec, Over: 13 * sec}}
	e.quiet.differ, e.quiet.streams, e.quiet.applied = "node-0 holds 3", 2, sec
	e.quiet.engines = map[string]string{"engine-0": "of engine-0 node-0 holds 3"}
	if v := verdicts(e)[treesConverge.Name]; v.State != Held || !strings.Contains(v.Note, "node-0 holds 3") {
		t.Errorf("%+v", v)
	}
	e.quiet.streams = 0
	if v := verdicts(e)[treesConverge.Name]; v.State != Held {
		t.Errorf("the other engine was compared: %+v", v)
	}
	e.quiet.engines["engine-1"] = "of engine-1 node-0 holds 3"
	if v := verdicts(e)[treesConverge.Name]; v.State != Violated {
		t.Errorf("an engine that lost nothing: %+v", v)
	}
	delete(e.quiet.engines, "engine-1")
	e.quiet.applied = convergeBound + 1
	if v := verdicts(e)[treesConverge.Name]; v.State != Violated {
		t.Errorf("applied too late: %+v", v)
	}
	e.quiet.applied = sec
	e.marks = append(e.marks, Mark{Event: event(13*sec, 0, "amnesia engine-1"), Members: [][]string{{"engine-1"}}, Began: 13 * sec, Struck: 13 * sec, Over: 13 * sec})
	if v := verdicts(e)[treesConverge.Name]; v.State != NotExercised {
		t.Errorf("nothing was compared: %+v", v)
	}
	clock := evident()
	clock.marks = []Mark{{Event: event(13*sec, 0, "clock node-0"), Members: [][]string{{"node-0"}}, Began: 13 * sec, Struck: 13 * sec, Over: 13 * sec}}
	clock.quiet.differ, clock.quiet.least, clock.quiet.most = "times", 99, 100
	if v := verdicts(clock)[treesConverge.Name]; v.State != Held {
		t.Errorf("%+v", v)
	}
	clock.quiet.least = 90
	if v := verdicts(clock)[treesConverge.Name]; v.State != Violated {
		t.Errorf("%+v", v)
	}
	clock.quiet.least, clock.quiet.behind = 99, "node-1 has 3 batches"
	if v := verdicts(clock)[treesConverge.Name]; v.State != Violated {
		t.Errorf("batches are counted by no clock: %+v", v)
	}
	e.quiet.streams, e.quiet.behind = 2, "node-1 has 3 batches"
	if v := verdicts(e)[treesConverge.Name]; v.State != Violated {
		t.Errorf("%+v", v)
	}
}

func TestLastBatchOfAKilledRouter(t *testing.T) {
	mark := func(what string) Mark {
		lasts := sec
		if strings.HasPrefix(what, "amnesia") {
			lasts = 0
		}
		return Mark{Event: event(13*sec, lasts, "%s", what), Members: [][]string{strings.Fields(what)[1:]}, Began: 13 * sec, Struck: 13 * sec, Ending: 14 * sec, Over: 14 * sec}
	}
	for _, c := range []struct {
		marks       []string
		least, most uint64
		want        State
	}{
		{[]string{"kill node-1"}, 99, 100, Held},
		{[]string{"kill node-1"}, 90, 100, Violated},
		{[]string{"stop node-1"}, 100, 100, Violated},
		{[]string{"pause node-1"}, 100, 100, Violated},
		{[]string{"pause node-1", "stop node-1"}, 50, 100, Held},
		{[]string{"partition node-0 | node-1", "kill node-1"}, 50, 100, Held},
		{[]string{"kill node-1", "amnesia engine-0"}, 50, 100, Held},
	} {
		e := evident()
		e.marks = nil
		e.quiet.differ, e.quiet.least, e.quiet.most = "node-0 holds 3", c.least, c.most
		for _, m := range c.marks {
			e.marks = append(e.marks, mark(m))
		}
		if v := verdicts(e)[treesConverge.Name]; v.State != c.want {
			t.Errorf("%v, %d to %d facts: %+v", c.marks, c.least, c.most, v)
		}
	}
}

func TestRemovedWhileANodeStarts(t *testing.T) {
	e := evident()
	back := func(name string) {
		for i, op := range []struct {
			kind history.Kind
			out  history.Output
		}{{history.Add, history.Output{}}, {history.Remove, history.Output{}}, {history.Read, history.Output{Exists: true}}} {
			at := int64(23*sec) + int64(i)*int64(sec)
			e.history = append(e.history, history.Operation{Input: history.Input{Kind: op.kind, Backend: name}, Call: at, Return: at + 1, Output: op.out})
		}
	}
	back("engine-1")
	if v := verdicts(e)[membershipKept.Name]; v.State != Violated {
		t.Errorf("it came back by itself: %+v", v)
	}
	e.marks[0].Began, e.marks[0].Ending, e.marks[0].Over = 24*sec, 25500*time.Millisecond, 26*sec
	if v := verdicts(e)[membershipKept.Name]; v.State != Violated {
		t.Errorf("it came back before the node was started: %+v", v)
	}
	e.marks[0].Ending = 24500 * time.Millisecond
	if v := verdicts(e)[membershipKept.Name]; v.State != Held {
		t.Errorf("it came back with a node: %+v", v)
	}
	back("b2")
	if v := verdicts(e)[membershipKept.Name]; v.State != Violated {
		t.Errorf("another one came back: %+v", v)
	}
}

func TestReport(t *testing.T) {
	e := evident()
	e.marks[0].Failed = "it <did> not"
	r := &run{cfg: Config{Scenario: "router-loss", Seed: 7, Nodes: 3, Duration: 30 * sec, Schedule: Schedule{e.marks[0].Event}, command: "grapevine --seed 7"}, s: &List()[0]}
	out := r.report(e.whole())
	if out.Result != Failed || out.Violations != 1 || out.Requests != 300 || out.Outcomes[Departed] != 6 || len(out.Timeline) != 32 || out.Command != "grapevine --seed 7" {
		t.Errorf("%+v", out)
	}
	path := t.TempDir() + "/new/page.html"
	if err := WriteHTML(path, out, skipped(&r.cfg, r.s, []string{"no <disks>"})); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	for _, want := range []string{"<svg ", "it &lt;did&gt; not", "no &lt;disks&gt;", "12s kill node-1 for 5s", "polyline", "--seed 7"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	text = strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, "")
	if strings.Contains(text, "http://") || strings.Contains(text, "https://") {
		t.Error("the page needs something else to be shown")
	}
	e = evident()
	e.marks = e.marks[:1]
	for _, a := range e.attempts {
		a.Text = 0
	}
	if out := r.report(e.whole()); out.Result != Idle || len(out.Missing) == 0 {
		t.Errorf("%s, %v: no byte was ever compared", out.Result, out.Missing)
	}
	r.cfg.LeaveOut = []string{noForeignBytes.Name}
	if out := r.report(e); out.Result != Passed || !slices.ContainsFunc(out.Verdicts, func(v Verdict) bool { return v.State == LeftOut }) {
		t.Errorf("%s, %v: what was left out counts", out.Result, out.Missing)
	}
	if err := WriteHTML(path+"/page.html", out); err == nil {
		t.Error("written below a file")
	}
}

func TestStandardErrors(t *testing.T) {
	for p, want := range map[float64]float64{byChance: 2.576, byChance / 100: 3.891, 0.5: 0} {
		if got := standardErrors(p); math.Abs(got-want) > 0.001 {
			t.Errorf("%v is exceeded once in %v, want %v", got, 1/p, want)
		}
	}
}

func TestBehind(t *testing.T) {
	publisher := &known{name: "x", GossipStatus: &admin.GossipStatus{Process: 7, Position: 10}}
	for _, c := range []struct {
		peer admin.PeerStatus
		want string
	}{
		{admin.PeerStatus{Process: 7, Position: 10}, ""},
		{admin.PeerStatus{Process: 7, Position: 12}, ""},
		{admin.PeerStatus{Process: 7, Position: 9}, "below 9, of those below 10"},
		{admin.PeerStatus{Process: 7, Position: 10, Incomplete: true}, "lacks batches below 10"},
		{admin.PeerStatus{Process: 6, Position: 10}, "process 6 of x"},
		{admin.PeerStatus{}, "process 0 of x"},
	} {
		k := &known{name: "y", GossipStatus: &admin.GossipStatus{Peers: map[string]admin.PeerStatus{"x": c.peer}}}
		if got := k.behind(publisher); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.peer, got, c.want)
		}
	}
}

func TestUnevenHits(t *testing.T) {
	e := evident()
	for i, a := range e.attempts {
		if a.Cached = 1000; i/10%2 == 0 {
			a.Cached = 200
		}
	}
	if v := verdicts(e)[hitRateRecovers.Name]; v.State != NotExercised || !strings.Contains(v.Note, "too uneven to judge") {
		t.Errorf("%+v", v)
	}
}

func TestHitsAfterOneOfMany(t *testing.T) {
	poor := func(other Mark) Verdict {
		e := evident()
		e.marks[0].Ending, e.marks[0].Over = 19*sec, 19*sec
		e.marks = append(e.marks, other)
		for i, a := range e.attempts[140:190] {
			if a.Cached = 500; i%2 == 0 {
				a.Cached = 520
			}
			extra := *a
			extra.ID, extra.Sent = "extra"+a.ID, a.Sent+1
			e.attempts = append(e.attempts, &extra)
			e.visits[extra.ID] = e.visits[a.ID]
		}
		return verdicts(e)[hitRateRecovers.Name]
	}
	mark := func(at, over time.Duration) Mark {
		return Mark{Event: event(at, 0, "slow engine-1 for 1s"), Members: [][]string{{"engine-1"}}, Began: at, Struck: at, Ending: over, Over: over}
	}
	for what, c := range map[string]struct {
		other    Mark
		violated bool
	}{
		"alone":              {mark(25*sec, 26*sec), true},
		"another was over":   {mark(5*sec, 6*sec), true},
		"another goes on":    {mark(11*sec, 18*sec), false},
		"another begins":     {mark(16*sec, 18*sec), false},
		"another never ends": {mark(11*sec, -1), false},
	} {
		if v := poor(c.other); (v.State == Violated) != c.violated {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

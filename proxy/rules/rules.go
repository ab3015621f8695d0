// Package rules finds the rule that a request follows, which says what becomes of it: the model that engines are asked for, what names its
// session, which pool of engines takes it, and by which strategy. It knows no engine.
package rules

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Rule says what becomes of the requests that fit it: of a list the first that fits, by all its conditions.
type Rule struct {
	Name string // unique, in receipts and metrics; "": the place in the list, as #3

	// Conditions. Empty ones fit all.
	Model       string // exact, or a prefix if it ends in "*"
	PathPrefix  string
	Header      string // must be present
	HeaderValue string // exact value; empty matches any non-empty value
	// Share is the part of the sessions that fit, or of the clients for requests without one, above 0 and below 1; 0: all. Name
	// draws them, the same at all nodes, and a larger share has those of a smaller one.
	Share float64

	// Session is what names the session of a request: "header:NAME", "body:MEMBER" or "client"; "": what the request says itself.
	Session string
	To      string // the model that engines are asked for; "": the request's
	// Pool and Fallback are labels, NAME=VALUE[,NAME=VALUE...]: only backends that have them all take the requests. Those of Fallback
	// do if none of Pool is eligible. "": no labels; no fallback. Fallback AnyBackend is all that serve the model.
	Pool, Fallback string
	Strategy       string // "": the router's default
}

// AnyBackend as a fallback means every backend that serves the model.
const AnyBackend = "any"

// Sources of sessions; see Rule.Session.
const (
	headerSession = "header:"
	bodySession   = "body:"
	clientSession = "client"
)

// Max and MaxPools bound a view, whose every pool has its own list of backends for each model.
const (
	Max      = 256
	MaxPools = 32
)

// Check returns the first mistake, with its remedy.
func (r *Rule) Check(strategies []string) error {
	switch {
	case r.Strategy == "" && r.To == "" && r.Pool == "" && r.Session == "":
		return fmt.Errorf("names no strategy, to, pool or session: add one, as a strategy of %v", strategies)
	case r.Strategy != "" && !slices.Contains(strategies, r.Strategy):
		return fmt.Errorf("unknown strategy %q: use one of %v", r.Strategy, strategies)
	case r.HeaderValue != "" && r.Header == "":
		return fmt.Errorf("header value %q without a header: name the header it belongs to", r.HeaderValue)
	case !(r.Share >= 0 && r.Share < 1):
		return fmt.Errorf("share %v: use a number above 0 and below 1, or leave it out", r.Share)
	case r.To != "" && !validModel(r.To):
		return fmt.Errorf("to %q: write a model of at most %d bytes without quotes, backslashes and control characters", r.To, maxModel)
	case r.Share > 0 && r.Name == "":
		return errors.New("share without a name: name the rule, which draws whose requests it takes")
	case r.Pool == AnyBackend:
		return errors.New("pool any: leave it out")
	case r.Fallback != "" && r.Pool == "":
		return errors.New("fallback without a pool: name the pool that it stands in for")
	case r.Fallback != "" && r.Fallback == r.Pool:
		return errors.New("the fallback is the pool itself: name other labels, or any")
	}
	_, err := sourceOf(r.Session)
	return err
}

// Check returns the place of the first mistake in a list, and what it is.
func Check(list []Rule, strategies []string) (int, error) {
	if len(list) > Max {
		return Max, fmt.Errorf("%d rules, at most %d are possible: make one of several with a model PREFIX*", len(list), Max)
	}
	names, pools := make(map[string]int), make(map[string]bool)
	for i := range list {
		r := &list[i]
		if err := r.Check(strategies); err != nil {
			return i, err
		}
		if first, known := names[r.Name]; known && r.Name != "" {
			return i, fmt.Errorf("name %q is that of rule %d: give each rule its own", r.Name, first)
		}
		names[r.Name] = i
		for _, labels := range []string{r.Pool, r.Fallback} {
			if labels != "" && labels != AnyBackend {
				pools[labels] = true
			}
		}
		if len(pools) > MaxPools {
			return i, fmt.Errorf("the rules name more than %d different pools: use fewer labels", MaxPools)
		}
	}
	return 0, nil
}

const maxModel = 256

// validModel reports whether JSON holds the name as it is.
func validModel(name string) bool {
	return len(name) <= maxModel && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r < ' ' || r == '"' || r == '\\' || r == 0x7f || r == 0x2028 || r == 0x2029
	})
}

// sessionSource reads what names a request's session.
type sessionSource struct {
	from string // headerSession, bodySession, clientSession or "": what the request says itself
	name string
}

func sourceOf(text string) (sessionSource, error) {
	for _, from := range []string{headerSession, bodySession} {
		if name, found := strings.CutPrefix(text, from); found && name != "" {
			return sessionSource{from, name}, nil
		}
	}
	if text == "" || text == clientSession {
		return sessionSource{from: text}, nil
	}
	return sessionSource{}, fmt.Errorf("session %q: use header:NAME, body:MEMBER or client", text)
}

// Request is what rules read of a request.
type Request struct {
	Model, Path []byte
	Session     []byte                   // that it names itself
	Client      []byte                   // who sends it; may be nil
	Header      func(name string) []byte // may be nil
	Member      func(name string) []byte // of the body; may be nil
}

func read(from func(name string) []byte, name string) []byte {
	if from == nil {
		return nil
	}
	return from(name)
}

// Route is a rule in the form that requests are compared with. Immutable.
type Route struct {
	Rule
	Label              string // Name, or its place in the list; "": the route of no rule
	Target             []byte // what engines are asked for; nil: the request's model
	model, path, value []byte
	modelPrefix        bool // model is a prefix
	session            sessionSource
	draw               uint64
}

// Compile returns the routes of a checked list and, behind them, that of no rule, which all requests fit.
func Compile(list []Rule) []Route {
	routes := make([]Route, 0, len(list)+1)
	for i, rule := range list {
		model, isPrefix := strings.CutSuffix(rule.Model, "*")
		r := Route{
			Rule: rule, Label: rule.label(i), model: []byte(model), modelPrefix: isPrefix,
			path: []byte(rule.PathPrefix), value: []byte(rule.HeaderValue), draw: xxh3.HashString(rule.Name),
		}
		if rule.To != "" {
			r.Target = []byte(rule.To)
		}
		r.session, _ = sourceOf(rule.Session) // checked
		routes = append(routes, r)
	}
	return append(routes, Route{})
}

func (r *Rule) label(place int) string {
	if r.Name != "" {
		return r.Name
	}
	return "#" + strconv.Itoa(place)
}

// Labels returns what names the rules of a list in decisions: Name, or # and the place in the list.
func Labels(list []Rule) (labels []string) {
	for i := range list {
		labels = append(labels, list[i].label(i))
	}
	return labels
}

// Members returns the members of bodies that name sessions by a list, sorted.
func Members(list []Rule) (members []string) {
	for i := range list {
		if s, _ := sourceOf(list[i].Session); s.from == bodySession && !slices.Contains(members, s.name) {
			members = append(members, s.name)
		}
	}
	slices.Sort(members)
	return members
}

// SessionOf returns the name of a request's session. It does not allocate.
func (r *Route) SessionOf(q *Request) []byte {
	switch s := &r.session; s.from {
	case headerSession:
		return bytes.TrimSpace(read(q.Header, s.name))
	case bodySession:
		return read(q.Member, s.name)
	case clientSession:
		return q.Client
	}
	return q.Session
}

// Fits reports whether the rule is the request's, if no earlier one is. It does not allocate.
func (r *Route) Fits(q *Request) bool {
	switch {
	case r.modelPrefix && !bytes.HasPrefix(q.Model, r.model):
		return false
	case !r.modelPrefix && len(r.model) > 0 && !bytes.Equal(q.Model, r.model):
		return false
	case !bytes.HasPrefix(q.Path, r.path):
		return false
	}
	if r.Header != "" {
		if got := bytes.TrimSpace(read(q.Header, r.Header)); len(got) == 0 || len(r.value) > 0 && !bytes.Equal(got, r.value) {
			return false
		}
	}
	return r.Share == 0 || r.draws(q)
}

// draws reports whether a request is of the rule's share: always the same for a session or, without one, a client. Requests that
// name neither are not.
func (r *Route) draws(q *Request) bool {
	key := r.SessionOf(q)
	if len(key) == 0 {
		key = q.Client
	}
	x := xxh3.Hash(key) ^ r.draw
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // the finaliser of splitmix64
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return len(key) > 0 && float64(x>>11)/(1<<53) < r.Share
}

package policy

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

// Rule says what becomes of the requests that fit it: of a view's rules the first that fits, by all its conditions.
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
	HeaderSession = "header:"
	BodySession   = "body:"
	ClientSession = "client"
)

// MaxRules and MaxPools bound a view, whose every pool has its own list of backends for each model.
const (
	MaxRules = 256
	MaxPools = 32
)

// Check returns the first mistake, with its remedy.
func (r *Rule) Check() error {
	switch {
	case r.Strategy == "" && r.To == "" && r.Pool == "" && r.Session == "":
		return fmt.Errorf("names no strategy, to, pool or session: add one, as a strategy of %v", builtin)
	case r.Strategy != "" && !slices.Contains(builtin, r.Strategy):
		return fmt.Errorf("unknown strategy %q: use one of %v", r.Strategy, builtin)
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
	_, err := sessionOf(r.Session)
	return err
}

// CheckRules returns the place of the first mistake in a list, and what it is.
func CheckRules(rules []Rule) (int, error) {
	if len(rules) > MaxRules {
		return MaxRules, fmt.Errorf("%d rules, at most %d are possible: make one of several with a model PREFIX*", len(rules), MaxRules)
	}
	names, pools := make(map[string]int), make(map[string]bool)
	for i := range rules {
		r := &rules[i]
		if err := r.Check(); err != nil {
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
	from string // HeaderSession, BodySession, ClientSession or "": what the request says itself
	name string
}

func sessionOf(text string) (sessionSource, error) {
	for _, from := range []string{HeaderSession, BodySession} {
		if name, found := strings.CutPrefix(text, from); found && name != "" {
			return sessionSource{from, name}, nil
		}
	}
	if text == "" || text == ClientSession {
		return sessionSource{from: text}, nil
	}
	return sessionSource{}, fmt.Errorf("session %q: use header:NAME, body:MEMBER or client", text)
}

func (s sessionSource) of(q *Request) []byte {
	switch s.from {
	case HeaderSession:
		if q.Header == nil {
			return nil
		}
		return bytes.TrimSpace(q.Header(s.name))
	case BodySession:
		if q.Member == nil {
			return nil
		}
		return q.Member(s.name)
	case ClientSession:
		return q.Client
	}
	return q.Session
}

// Route is a rule as a router follows it, or what it does without one. Immutable.
type Route struct {
	Rule
	model, pathPrefix, value []byte
	modelPrefix              bool // model is a prefix
	to                       []byte
	session                  sessionSource
	draw                     uint64
	strategy                 *named
	label                    string // Name, or its place in the list; "": the route of no rule
}

// Target is what engines are asked for instead of the request's model; nil: that model.
func (r *Route) Target() []byte {
	if !r.Aliases() {
		return nil
	}
	return r.to
}

// Aliases reports whether engines are asked for another model than the request's.
func (r *Route) Aliases() bool { return len(r.to) > 0 }

type ruleSet struct {
	rules    []Route
	members  []string // see SessionMembers
	fallback *Route   // of requests that fit none
}

func (r *Router) newRuleSet(rules []Rule) ruleSet {
	tuned := r.tuning.Load()
	set := ruleSet{fallback: &Route{strategy: tuned.fallback}}
	for i, rule := range rules {
		model, isPrefix := strings.CutSuffix(rule.Model, "*")
		route := Route{
			Rule: rule, model: []byte(model), modelPrefix: isPrefix, pathPrefix: []byte(rule.PathPrefix), value: []byte(rule.HeaderValue),
			to: []byte(rule.To), draw: xxh3.HashString(rule.Name), strategy: tuned.fallback, label: rule.label(i),
		}
		if rule.Strategy != "" {
			route.strategy = tuned.strategies[rule.Strategy]
		}
		route.session, _ = sessionOf(rule.Session) // checked
		set.rules = append(set.rules, route)
		if s := route.session; s.from == BodySession && !slices.Contains(set.members, s.name) {
			set.members = append(set.members, s.name)
		}
	}
	slices.Sort(set.members)
	return set
}

func (r *Rule) label(place int) string {
	if r.Name != "" {
		return r.Name
	}
	return "#" + strconv.Itoa(place)
}

// RuleNames returns what names the view's rules in decisions: Rule.Name, or # and the place in the list.
func (v *View) RuleNames() (names []string) {
	for i := range v.Rules {
		names = append(names, v.Rules[i].label(i))
	}
	return names
}

func (s *ruleSet) route(q *Request) *Route {
	for i := range s.rules {
		if s.rules[i].fits(q) {
			return &s.rules[i]
		}
	}
	return s.fallback
}

func (r *Route) fits(q *Request) bool {
	switch {
	case r.modelPrefix && !bytes.HasPrefix(q.Model, r.model):
		return false
	case !r.modelPrefix && len(r.model) > 0 && !bytes.Equal(q.Model, r.model):
		return false
	case !bytes.HasPrefix(q.Path, r.pathPrefix):
		return false
	}
	if r.Header != "" {
		if q.Header == nil {
			return false
		}
		got := bytes.TrimSpace(q.Header(r.Header))
		if len(got) == 0 || len(r.value) > 0 && !bytes.Equal(got, r.value) {
			return false
		}
	}
	return r.Share == 0 || r.draws(q)
}

// draws reports whether a request is of the rule's share: always the same for a session or, without one, a client. Requests that
// name neither are not.
func (r *Route) draws(q *Request) bool {
	key := r.session.of(q)
	if len(key) == 0 {
		key = q.Client
	}
	return len(key) > 0 && unit(mix(xxh3.Hash(key)^r.draw)) < r.Share
}

// Follow chooses the rule of a request, and sets the model and the session as it says. Later decisions about the request keep to
// it, even if the rules change meanwhile. Without it they look for the rule themselves, and leave the model: a caller that cannot
// tell engines another model must not call it. It does not allocate.
func (r *Router) Follow(q *Request) {
	q.Route, q.Asked = r.table.Load().rules.route(q), q.Model
	if q.Route.Aliases() {
		q.Model = q.Route.to
	}
	q.Session = q.Route.session.of(q)
}

// SessionMembers returns the members of bodies that name sessions by the rules in force, sorted. They must not be changed.
func (r *Router) SessionMembers() []string { return r.table.Load().rules.members }

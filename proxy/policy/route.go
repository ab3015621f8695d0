package policy

import "grapevine.example/proxy/rules"

// Route is a rule that a request follows, or what it does without one. Immutable.
type Route struct {
	rules.Route
	strategy *named
}

func (r *Router) routes(list []rules.Rule) (routes []Route) {
	tuned := r.tuning.Load()
	for _, route := range rules.Compile(list) {
		strategy := tuned.fallback
		if route.Strategy != "" {
			strategy = tuned.strategies[route.Strategy]
		}
		routes = append(routes, Route{route, strategy})
	}
	return routes
}

// routeOf returns the route that a request follows or, before Follow, would follow now.
func (t *table) routeOf(q *Request) *Route {
	if q.Route != nil {
		return q.Route
	}
	asks := q.forRules()
	return t.route(&asks)
}

func (t *table) route(q *rules.Request) *Route {
	i := 0
	for !t.routes[i].Fits(q) { // the last one fits all
		i++
	}
	return &t.routes[i]
}

func (q *Request) forRules() rules.Request {
	return rules.Request{Model: q.Model, Path: q.Path, Session: q.Session, Client: q.Client, Header: q.Header, Member: q.Member}
}

// Follow chooses the rule of a request, and sets the model and the session as it says. Later decisions about the request keep to
// it, even if the rules change meanwhile. Without it they look for the rule themselves, and leave the model: a caller that cannot
// tell engines another model must not call it. It does not allocate.
func (r *Router) Follow(q *Request) {
	asks := q.forRules()
	q.Route, q.Asked = r.table.Load().route(&asks), q.Model
	if q.Session = q.Route.SessionOf(&asks); q.Route.Target != nil {
		q.Model = q.Route.Target
	}
}

// SessionMembers returns the members of bodies that name sessions by the rules in force, sorted. They must not be changed.
func (r *Router) SessionMembers() []string { return r.table.Load().members }

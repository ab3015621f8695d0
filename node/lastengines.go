package node

import (
	"fmt"
	"net/http"
	"strings"

	"grapevine.example/node/admin"
	"grapevine.example/node/backends"
	"grapevine.example/raftstore"
)

// parts are the engines without which requests of a fleet with roles wait longer, or fail.
var parts = []struct {
	name  string
	holds func(raftstore.Role) bool
}{
	{"", func(raftstore.Role) bool { return true }},
	{" of role prefill", func(r raftstore.Role) bool { return r == raftstore.Prefill }},
	{" of role decode", func(r raftstore.Role) bool { return r == raftstore.Decode }},
	{" of role both or decode", func(r raftstore.Role) bool { return r != raftstore.Prefill }},
}

// checkLast refuses to leave the fleet, or a model of a named backend, without an active engine, or
// without one of a role.
func (n *Node) checkLast(names []string, place, verb string) error {
	unknown := make(map[string]bool, len(names))
	for _, name := range names {
		unknown[name] = true
	}
	var going, staying []*backends.Engine
	for _, u := range n.backends.Roster().List {
		named := unknown[u.Name]
		delete(unknown, u.Name)
		switch {
		case u.State != raftstore.Active:
		case named:
			going = append(going, u)
		default:
			staying = append(staying, u)
		}
	}
	if len(unknown) > 0 { // fails the whole change later
		return nil
	}
	lost := ""
	for _, part := range parts {
		if lost = n.lost(ofPart(going, part.holds), ofPart(staying, part.holds), part.name); lost != "" {
			break
		}
	}
	if lost == "" {
		return nil
	}
	return admin.Refuse(http.StatusConflict, place, "add or resume another engine first, or do it all the same with force (--force)",
		"%s of %s would leave the fleet with %s", verb, someNames(going), lost)
}

func ofPart(list []*backends.Engine, holds func(raftstore.Role) bool) []*backends.Engine {
	var some []*backends.Engine
	for _, u := range list {
		if holds(u.Role) {
			some = append(some, u)
		}
	}
	return some
}

// lost describes what is missing without going, or returns "".
func (n *Node) lost(going, staying []*backends.Engine, part string) string {
	switch {
	case len(going) == 0:
		return ""
	case len(staying) == 0:
		return "no active engine" + part
	}
	if models := n.backends.OnlyServedBy(going, staying); len(models) > 0 {
		return fmt.Sprintf("no active engine%s for model %s", part, strings.Join(models, ", "))
	}
	return ""
}

const namesInRefusal = 3

func someNames(list []*backends.Engine) string {
	var names []string
	for _, u := range list[:min(len(list), namesInRefusal)] {
		names = append(names, u.Name)
	}
	if more := len(list) - len(names); more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), more)
	}
	return strings.Join(names, ", ")
}

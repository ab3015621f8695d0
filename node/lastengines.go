package node

import (
	"fmt"
	"net/http"
	"strings"

	"grapevine/node/admin"
	"grapevine/node/backends"
	"grapevine/raftstore"
)

// checkLast refuses to leave the fleet, or a model of a named backend, without an active engine.
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
	lost := ""
	switch {
	case len(going) == 0, len(unknown) > 0: // an unknown name fails the whole change later
		return nil
	case len(staying) == 0:
		lost = "no active engine"
	default:
		models := n.backends.OnlyServedBy(going, staying)
		if len(models) == 0 {
			return nil
		}
		lost = fmt.Sprintf("no active engine for model %s", strings.Join(models, ", "))
	}
	return admin.Refuse(http.StatusConflict, place, "add or resume another engine first, or do it all the same with force (--force)",
		"%s of %s would leave the fleet with %s", verb, someNames(going), lost)
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

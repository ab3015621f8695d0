package node

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"grapevine/node/admin"
	"grapevine/proxy/policy"
)

// checkLast refuses to leave the fleet, or a model of a named backend, without an active engine, by
// this node's roster. The client's force skips it.
func (n *Node) checkLast(names []string, place, verb string) error {
	unknown := make(map[string]bool, len(names))
	for _, name := range names {
		unknown[name] = true
	}
	var going, staying []*upstream
	for _, u := range n.fleet.roster().list {
		named := unknown[u.Name]
		delete(unknown, u.Name)
		switch {
		case u.state != policy.Active:
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
		models := n.fleet.onlyServedBy(going, staying)
		if len(models) == 0 {
			return nil
		}
		lost = fmt.Sprintf("no active engine for model %s", strings.Join(models, ", "))
	}
	return admin.Refuse(http.StatusConflict, place, "add or resume another engine first, or do it all the same with force (--force)",
		"%s of %s would leave the fleet with %s", verb, someNames(going), lost)
}

// onlyServedBy lists models that only going engines serve. A staying engine with unknown models
// serves any.
func (f *fleet) onlyServedBy(going, staying []*upstream) (models []string) {
	served := make(map[string]bool)
	for _, u := range staying {
		names, _, _ := f.modelsOf(u)
		if names == nil {
			return nil
		}
		for _, name := range names {
			served[name] = true
		}
	}
	for _, u := range going {
		names, _, _ := f.modelsOf(u)
		for _, name := range names {
			if !served[name] {
				models = append(models, name)
			}
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

const namesInRefusal = 3

func someNames(list []*upstream) string {
	var names []string
	for _, u := range list[:min(len(list), namesInRefusal)] {
		names = append(names, u.Name)
	}
	if more := len(list) - len(names); more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), more)
	}
	return strings.Join(names, ", ")
}

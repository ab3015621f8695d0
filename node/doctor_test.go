package node

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A node that served nothing knows what the doctor of another one found.
func TestAnyNodeAnswersForTheDoctor(t *testing.T) {
	t.Parallel()
	engine := newFakeEngine(t, "m")
	nodes := startFleet(t, 2, engine.URL)
	one, two := nodes[0], nodes[1]
	for i := range 12 {
		if status, _, body := chat(t, two, chatBody("m", fmt.Sprintf("ticket %d: %s", i, strings.Repeat(longText, 40)))); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	eventually(t, "the other node's diagnosis", func() bool {
		r := one.Doctor()
		return r.Node == one.name && r.Reporting == 1 && len(r.Applications) == 1 && r.Applications[0].Model == "m" && r.Applications[0].Requests > 0
	})
	stopNode(t, two)
	eventually(t, "its end", func() bool { return len(one.Doctor().Applications) == 0 })
}

package member

import (
	"fmt"
	"net"
	"testing"

	"github.com/hashicorp/memberlist"
)

// A member evicted for another is still reported.
func TestTableBound(t *testing.T) {
	self := testConfig("self").Self
	tb := newTable(func() Info { return self })
	node := func(name string) *memberlist.Node {
		c := meta{Info: self}
		c.Name, c.Addr = name, "10.0.0.1:7946"
		meta, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		return &memberlist.Node{Name: name, Addr: net.IPv4(10, 0, 0, 1), Port: 7946, Meta: meta}
	}
	for i := range maxMembers {
		tb.alive(node(fmt.Sprint("n", i)))
	}
	tb.events()
	if _, err := tb.admit(node("more")); err == nil {
		t.Error("more members than the table holds")
	}
	tb.gone("n7")
	for range 3 {
		_, _ = tb.admit(node("more"))
	}
	ev := tb.events()
	if len(ev) != 1 || ev[0].Kind != Failed || ev[0].Member.Name != "n7" {
		t.Errorf("no event for the end of n7: %v", ev)
	}
}

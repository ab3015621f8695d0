package raftstore

import (
	"fmt"
	"strings"
	"testing"
)

// parse reads "a:vl b:v": v voter, l leader, d dead, g gone, s stable, i ill.
func parse(line string) (list []standing) {
	for word := range strings.FieldsSeq(line) {
		id, marks, _ := strings.Cut(word, ":")
		has := func(mark string) bool { return strings.Contains(marks, mark) }
		list = append(list, standing{
			id: id, voter: has("v"), leader: has("l"), dead: has("d") || has("g"), gone: has("g"), stable: has("s"),
			healthy: !has("i") && !has("d") && !has("g"),
		})
	}
	return list
}

func TestNextChange(t *testing.T) {
	for _, c := range []struct {
		name, servers string
		wanted        int
		want          string
	}{
		{"alone", "a:vl", 3, "nothing"},
		{"two stay one", "a:vl b:s", 3, "nothing"},
		{"three become three", "a:vl b:s c:s", 3, "promote b"},
		{"and go on", "a:vl b:v c:s", 3, "promote c"},
		{"not before they are stable", "a:vl b c", 3, "nothing"},
		{"enough", "a:vl b:v c:v d:s e:s", 3, "nothing"},
		{"five wanted, four there", "a:vl b:v c:v d:s", 5, "nothing"},
		{"five wanted, five there", "a:vl b:v c:v d:s e:s", 5, "promote d"},
		{"dead without replacement", "a:vl b:v c:vd", 3, "nothing"},
		{"dead with replacement", "a:vl b:v c:vd d:s", 3, "promote d"},
		{"then it loses its vote", "a:vl b:v c:vd d:v", 3, "demote c"},
		{"then it is forgotten", "a:vl b:v c:g d:v", 3, "remove c"},
		{"gone voter is demoted first", "a:vl b:v c:vg d:v", 3, "demote c"},
		{"never half", "a:vl b:vd c:vd d:v", 3, "nothing"},
		{"never a majority", "a:vl b:vd c:vd", 3, "nothing"},
		{"two of five", "a:vl b:v c:v d:vd e:vd", 5, "demote d"},
		{"then the other", "a:vl b:v c:v e:vd", 5, "demote e"},
		{"one of five stays", "a:vl b:v c:v d:v e:vd", 5, "nothing"},
		{"fewer wanted", "a:vl b:v c:v d:v e:v", 3, "demote e"},
		{"the ill one first", "a:vl b:vi c:v d:v e:v", 3, "demote b"},
		{"never the leader", "a:v b:v c:v d:v e:vl", 3, "demote d"},
		{"an ill voter keeps its vote", "a:vl b:v c:vi d:s", 3, "nothing"},
	} {
		change, id := nextChange(parse(c.servers), c.wanted)
		if got := strings.TrimSpace(fmt.Sprint(change, " ", id)); got != c.want {
			t.Errorf("%s (%s): %s, want %s", c.name, c.servers, got, c.want)
		}
	}
}

// Any sequence of steps keeps a live quorum and ends.
func TestChangesAreSafeAndEnd(t *testing.T) {
	r := seeded(t)
	for range 20000 {
		var list []standing
		wanted := []int{3, 5}[r.IntN(2)]
		for i := range 1 + r.IntN(8) {
			s := standing{id: string(rune('a' + i)), voter: r.IntN(2) == 0, dead: r.IntN(4) == 0}
			s.healthy = !s.dead
			s.stable = !s.voter && s.healthy && r.IntN(2) == 0
			s.gone = s.dead && r.IntN(2) == 0
			list = append(list, s)
		}
		list[0] = standing{id: "a", voter: true, leader: true, healthy: true}
		before := fmt.Sprintf("%+v", list)
		quorate := func() bool {
			voters, live := 0, 0
			for _, s := range list {
				if s.voter {
					voters++
					if !s.dead {
						live++
					}
				}
			}
			return live > voters/2
		}
		if !quorate() {
			continue // no step would be committed
		}
		for step := 0; ; step++ {
			change, id := nextChange(list, wanted)
			if change == changeNothing {
				break
			}
			for i := range list {
				if list[i].id != id {
					continue
				}
				switch change {
				case changePromote:
					list[i].voter, list[i].stable = true, false
				case changeDemote:
					list[i].voter = false
					list[i].stable = list[i].healthy
					if list[i].leader {
						t.Fatalf("%s: the leader lost its vote", before)
					}
				case changeRemove:
					list = append(list[:i:i], list[i+1:]...)
				}
				break
			}
			if !quorate() {
				t.Fatalf("%s: no quorum after %v of %s: %+v", before, change, id, list)
			}
			if step > 30 {
				t.Fatalf("%s: no end of changes: %+v", before, list)
			}
		}
	}
}

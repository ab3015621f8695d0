package raftstore

import (
	"slices"
	"strings"
)

type standing struct {
	id      string
	voter   bool
	leader  bool
	healthy bool // answers with a nearly complete log
	stable  bool // may vote, and healthy for Timers.Stable
	dead    bool // left, or silent for Timers.Dead
	gone    bool // left, or silent for Timers.Forget
}

type change uint8

const (
	changeNothing change = iota
	changePromote        // non-voter to voter
	changeDemote         // voter to non-voter
	changeRemove         // removes a non-voter
)

func (c change) String() string { return nameOf(c, "nothing", "promote", "demote", "remove") }

// nextChange returns the next step towards the wanted number of voters:
//
//   - The target is the largest odd number up to wanted for which servers exist.
//   - A stable server gets a vote when live voters are too few.
//   - A dead voter may return, so it loses its vote only if at least three live voters remain and,
//     up to wanted, an odd number.
//   - With half of the voters dead, none loses its vote: they may be beyond a partition.
//   - A live voter loses its vote only above the wanted number.
func nextChange(list []standing, wanted int) (change, string) {
	var voters, live, candidates []standing
	for _, s := range list {
		switch {
		case s.voter:
			voters = append(voters, s)
			if !s.dead {
				live = append(live, s)
			}
		case s.stable:
			candidates = append(candidates, s)
		}
	}
	byID := func(a, b standing) int { return strings.Compare(a.id, b.id) }
	slices.SortFunc(candidates, byID)
	slices.SortFunc(voters, byID)

	aim := min(wanted, len(live)+len(candidates))
	if aim%2 == 0 && aim > 0 {
		aim--
	}
	if len(live) < aim && len(candidates) > 0 {
		return changePromote, candidates[0].id
	}
	dead := len(voters) - len(live)
	odd := len(live)%2 == 1 || len(live) > wanted
	if dead > 0 && 2*dead < len(voters) && len(live) >= max(aim, 3) && odd {
		i := slices.IndexFunc(voters, func(s standing) bool { return s.dead })
		return changeDemote, voters[i].id
	}
	if dead == 0 && len(live) > wanted && len(live) > 1 {
		return changeDemote, surplus(voters)
	}
	for _, s := range list {
		if !s.voter && s.gone {
			return changeRemove, s.id
		}
	}
	return changeNothing, ""
}

func surplus(voters []standing) string {
	pick := ""
	for _, s := range voters {
		switch {
		case s.leader:
		case !s.healthy:
			return s.id
		default:
			pick = s.id
		}
	}
	return pick
}

package raftstore

import "slices"

// standing is a server as seen by nextChange.
type standing struct {
	id      string
	voter   bool
	leader  bool
	healthy bool // answers, and its log is nearly complete
	stable  bool // may vote, and was healthy long enough to get a vote
	dead    bool // left, or silent long enough to lose its vote
	gone    bool // left, or silent long enough to be removed as a non-voter
}

// change is one step of the configuration.
type change uint8

const (
	changeNothing change = iota
	changePromote        // a non-voter becomes a voter
	changeDemote         // a voter becomes a non-voter
	changeRemove         // a non-voter leaves the configuration
)

// String returns the name used in logs.
func (c change) String() string { return nameOf(c, "nothing", "promote", "demote", "remove") }

// nextChange is the one step that brings the voters closer to the wanted number. It is a pure
// function:
//
//   - The target is the largest odd number up to wanted for which there are servers, because an even
//     number tolerates no more losses than the odd number below.
//   - A stable server gets a vote when live voters are too few.
//   - A dead voter loses its vote if enough live voters remain, but never if fewer than three or an
//     even number would remain: an unreachable voter may return.
//   - No dead voter loses its vote while half of the voters or more are dead: they may be on the other
//     side of a partition.
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
	byID := func(a, b standing) int {
		if a.id < b.id {
			return -1
		}
		return 1
	}
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

// surplus picks the voter to demote: an unhealthy one, else any but the leader.
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

package raftstore

import "slices"

// standing is a server as the rules for voters see it.
type standing struct {
	id      string
	voter   bool
	leader  bool
	healthy bool // answers, and its log is near the end
	stable  bool // healthy for long enough to be given a vote, and may have one
	dead    bool // said goodbye, or was not heard of for long: a voter to be replaced
	gone    bool // the same, for longer: a non-voter to be forgotten
}

// change is one step of the configuration.
type change uint8

const (
	changeNothing change = iota
	changePromote        // a non-voter votes
	changeDemote         // a voter does not vote any more
	changeRemove         // a non-voter leaves the configuration
)

// String gives the change as it is logged.
func (c change) String() string { return nameOf(c, "nothing", "promote", "demote", "remove") }

// nextChange is the one step that brings the voters nearer to the wanted number.
// It is a pure function of what the leader sees:
//
//   - The number of voters aimed at is the largest odd one that is not above the
//     wanted one and that there are servers for. An even number needs as many
//     more to agree and bears the loss of no more.
//   - A server is given a vote when there are too few live voters.
//   - A dead voter loses its vote when the live ones are enough without it, and
//     never if fewer than three would remain, or an even number: an unreachable
//     voter that comes back is worth more than a smaller group.
//   - Nothing is taken from anybody while the dead are half of the voters or more.
//     They may be on the other side of a partition.
//   - A living voter loses its vote only if more were wanted once than now.
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

// surplus picks the voter that is missed least: an ill one, else any that does
// not lead.
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

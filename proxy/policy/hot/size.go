package hot

import (
	"fmt"
	"math"

	"grapevine/proxy/policy"
)

// DESIGN.md of proxy/policy has the measurements behind the numbers.
const (
	// fill is how busy a replica may be with the prefix and everything else.
	fill = 0.8
	// leastRoom is the least part of a backend that the prefix may have, however busy the backends are otherwise.
	leastRoom = 0.1
	// comfort is how many times its fair share of the backends a prefix has: the backends times its share of the requests.
	comfort = 2
	// memoryShare is the part of the pool's KV memory that hot prefixes together may claim for comfort.
	memoryShare = 0.05
	// enterWork and stayWork are the backends kept busy from which a prefix counts as hot, and above which it stays so; enterShare and
	// stayShare the same in fair shares.
	enterWork, stayWork   = 0.2, 0.1
	enterShare, stayShare = 1.0, 0.5
	// enterFresh and stayFresh are the requests a second, such as go on with no known prompt, without which it is not hot: one in the last
	// seconds, at two looks in a row, and one in every few minutes. A conversation that goes on stays where it is held, in a set or not.
	enterFresh, stayFresh = 0.05, 0.002
	// leastTokens is the length from which a prefix is worth a set: a shorter one is computed anywhere in no time.
	leastTokens = 2048
)

// Need is how many backends a prefix needs, and by what.
type Need struct {
	Replicas int
	Work     float64 // backends that its own work would keep busy
	Other    float64 // how busy everything else keeps the mean backend
	Share    float64 // of the requests: of those that run or of those that come, whichever is more
	Fresh    float64 // requests a second that go on with no known prompt
	Capped   bool    // the memory that hot prefixes may claim allows no more
}

// Why says it for people.
func (n *Need) Why() string {
	why := fmt.Sprintf("%.0f %% of the requests; keeps %.2f backends busy, all else %.2f of each", 100*n.Share, n.Work, n.Other)
	if n.Capped {
		why += "; memory allows no more"
	}
	return why
}

// Size returns how many backends of a pool a prefix needs, by its work w and all work of the pool; free is the KV tokens that it may
// claim, below 0 if that is not known.
//
// By the work alone it would need those that it keeps busy in the room that all else leaves. But nobody tells how many requests an
// engine can run at once, nor is the room known better than the rates are; and who waits behind short requests waits less than behind long ones. The share of the requests says it without: with its fair share of
// the backends, the prefix could have them for itself, everything else would go to the others, and all were as full as
// before. Twice as many leave a choice.
func Size(w, all policy.Work, backends int, free float64) Need {
	b := float64(backends)
	busy := max(all.Prefill, w.Prefill) / b
	real := min(1, 1/max(busy, 1e-9)) // nobody is busier than always: the rates were learned too low
	n := Need{Fresh: w.Fresh, Work: w.Prefill * real, Other: max(all.Prefill-w.Prefill, 0) * real / b}
	for _, part := range [2][2]float64{{w.Active, all.Active}, {w.Requests, all.Requests}} {
		if part[1] > 0 {
			n.Share = max(n.Share, min(part[0]/part[1], 1))
		}
	}
	least := max(math.Ceil(n.Work/max(leastRoom, fill-n.Other)), math.Ceil(b*n.Share), 1)
	r := max(least, math.Ceil(comfort*b*n.Share))
	if most := free / max(w.Tokens, 1); free >= 0 && r > most {
		r, n.Capped = max(math.Floor(most), least), true
	}
	n.Replicas = int(min(r, b))
	return n
}

// heat is how many times over the threshold of being hot a prefix is, by its work or by its share, among so many backends.
func (n *Need) heat(backends int) float64 {
	return max(n.Work/enterWork, n.Share*float64(backends)/enterShare)
}

// warm says whether a prefix that is so long and needs so much is hot; agreed is whether it was before.
func (n *Need) warm(tokens float64, backends int, agreed bool) bool {
	work, share, fresh := enterWork, enterShare, enterFresh
	if agreed {
		work, share, fresh = stayWork, stayShare, stayFresh
	}
	return tokens >= leastTokens && n.Fresh >= fresh && (n.Work >= work || n.Share*float64(backends) >= share)
}

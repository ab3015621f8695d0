package hot

import (
	"fmt"
	"math"

	"grapevine.example/proxy/demand"
)

// proxy/policy/DESIGN.md, "Hot prefixes", explains these rules.
const (
	// fill is how busy a replica may be.
	fill = 0.8
	// leastRoom is the least part of each backend available to the prefix.
	leastRoom = 0.1
	// comfort is the multiple of its fair share (backends x share of requests) that a prefix gets.
	comfort = 2
	// A prefix turns hot at enterWork busy backends or enterShare fair shares, and cools below
	// stayWork and stayShare.
	enterWork, stayWork   = 0.2, 0.1
	enterShare, stayShare = 1.0, 0.5
	// Requests/s of new conversations to turn and stay hot: one in the last seconds, and one in
	// several minutes.
	enterFresh, stayFresh = 0.05, 0.002
	// leastTokens: shorter prefixes are cheap to compute.
	leastTokens = 2048
)

type Need struct {
	Replicas int
	Work     float64 // backends that its work keeps busy
	Other    float64 // utilisation of the mean backend by all other work
	Share    float64 // the larger of its shares of active and of arriving requests
	Requests float64 // requests/s
	Fresh    float64 // of these, new conversations
}

func (n *Need) Why() string {
	return fmt.Sprintf("%.0f %% of the requests; keeps %.2f backends busy, all else %.2f of each", 100*n.Share, n.Work, n.Other)
}

// Size returns the need of a prefix with work w in a pool with work all. Work alone underestimates, since
// concurrency limits are unknown; the share of requests does not.
func Size(w, all demand.Work, backends int) Need {
	b := float64(backends)
	busy := max(all.Prefill, w.Prefill) / b
	real := min(1, 1/max(busy, 1e-9)) // utilisation above 1 means that the rates are too low
	n := Need{Requests: w.Requests, Fresh: w.Fresh, Work: w.Prefill * real, Other: max(all.Prefill-w.Prefill, 0) * real / b}
	for _, part := range [2][2]float64{{w.Active, all.Active}, {w.Requests, all.Requests}} {
		if part[1] > 0 {
			n.Share = max(n.Share, min(part[0]/part[1], 1))
		}
	}
	n.Replicas = int(min(max(math.Ceil(n.Work/max(leastRoom, fill-n.Other)), math.Ceil(comfort*b*n.Share), 1), b))
	return n
}

func (n *Need) warm(tokens float64, backends int, agreed bool) bool {
	work, share, fresh := enterWork, enterShare, enterFresh
	if agreed {
		work, share, fresh = stayWork, stayShare, stayFresh
	}
	return tokens >= leastTokens && n.Fresh >= fresh && (n.Work >= work || n.Share*float64(backends) >= share)
}

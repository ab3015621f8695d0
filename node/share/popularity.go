package share

import (
	"time"

	"grapevine.example/prefixtree"
	"grapevine.example/proxy/demand"
	"grapevine.example/proxy/policy"
)

const maxSentPools = 4 // bounds the pools whose traffic and work a node sends

// popularityKept: rates fade, so send them again.
const popularityKept = prefixtree.Time(time.Minute / time.Millisecond)

// Popularity is one node's traffic in its busiest pools, and the work behind their popular prefixes.
type Popularity struct {
	Traffic []demand.Report
	Works   []demand.Work
}

// sentPopularity stays until a sixteenth more requests came, at most 250, because gossip does not
// repeat an equal blob.
type sentPopularity struct {
	blob  []byte
	picks uint64
	at    prefixtree.Time
}

func (s *sentPopularity) append(blob []byte, r *policy.Router, now prefixtree.Time) []byte {
	picks := r.Stats().Picks
	if s.at == 0 || picks-s.picks > min(s.picks/16, 250) || now-s.at >= popularityKept || now < s.at {
		h := Popularity{r.OwnTraffic(maxSentPools, now), r.OwnWork(maxSentPools, now)}
		s.blob, s.picks, s.at = appendPopularity(s.blob[:0], &h), picks, now
	}
	return append(blob, s.blob...)
}

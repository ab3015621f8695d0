package fleetsim

import (
	"fmt"
	"strings"
	"time"
)

// Partition cuts the nodes of a run into two halves that do not hear each other from one moment of virtual time to another.
// The zero value is none.
type Partition struct {
	From, To time.Duration
}

func (p Partition) none() bool { return p == Partition{} }

// ParsePartition reads FROM-TO, such as 60s-120s; "" is none.
func ParsePartition(s string) (Partition, error) {
	if s == "" {
		return Partition{}, nil
	}
	from, to, ok := strings.Cut(s, "-")
	p := Partition{}
	var err, err2 error
	p.From, err = time.ParseDuration(from)
	p.To, err2 = time.ParseDuration(to)
	if !ok || err != nil || err2 != nil || !p.valid() {
		return p, fmt.Errorf("%w: partition %q: want two times since the start, such as 60s-120s", ErrConfig, s)
	}
	return p, nil
}

func (p Partition) valid() bool { return p.none() || 0 <= p.From && p.From < p.To }

const (
	// detection is how long nodes take the load of others for true after they have last heard of them. Failure detection is
	// tuned for two to five seconds.
	detection = 5 * time.Second
	// reunion is how long after the end of a partition the halves have found each other again and have told what they missed:
	// lost members are dialled about every five seconds.
	reunion = 5 * time.Second
)

// link is how messages get from one node to another: after a fixed delay, unless they are lost or a partition is in the way.
// Immutable.
type link struct {
	delay time.Duration
	nodes int
	loss  float64
	seed  uint64
	Partition
}

// half returns which side of a partition a node is on.
func (l *link) half(node int) int {
	if 2*node < l.nodes {
		return 0
	}
	return 1
}

// far says whether two nodes are on different sides.
func (l *link) far(a, b int) bool { return !l.none() && l.half(a) != l.half(b) }

// up says whether what is sent at the given time gets to the other side.
func (l *link) up(sent time.Duration) bool { return l.none() || sent < l.From || sent >= l.To+reunion }

// repaired returns when the other side has what was sent at the given time. What the partition held up comes when it is over:
// missed batches are asked for again.
func (l *link) repaired(sent time.Duration) time.Duration {
	if l.up(sent) {
		return sent + l.delay
	}
	return l.To + reunion + l.delay
}

// lost says whether what an origin tells of its tree in one flush never arrives at a node: the same whenever it is asked, and
// apart for every pair. Loads are not lost: only the latest counts, and a stream delivers it.
func (l *link) lost(origin, node int, sent time.Duration) bool {
	if l.loss == 0 {
		return false
	}
	x := l.seed
	for _, v := range [3]uint64{uint64(origin), uint64(node), uint64(sent / flush)} {
		x = scramble(x + v + 0x9e3779b97f4a7c15)
	}
	return float64(x>>11)/(1<<53) < l.loss
}

// scramble is the finaliser of SplitMix64: every bit of x changes half of the result.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

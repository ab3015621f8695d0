package fleetsim

import (
	"fmt"
	"strings"
	"time"
)

// Partition separates the nodes into two halves for a time; zero is none.
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
	// detection is the longest time for which nodes keep the load of silent peers.
	detection = 5 * time.Second
	// reunion is how long after a partition the halves have repaired: lost members are dialled
	// about every five seconds.
	reunion = 5 * time.Second
)

type link struct {
	delay time.Duration
	size  int // nodes
	loss  float64
	seed  uint64
	Partition
}

func (l *link) half(node int) int {
	if 2*node < l.size {
		return 0
	}
	return 1
}

func (l *link) far(a, b int) bool { return !l.none() && l.half(a) != l.half(b) }

func (l *link) up(sent time.Duration) bool { return l.none() || sent < l.From || sent >= l.To+reunion }

// known returns when the other half receives a message: after a partition, because nodes request
// missed batches.
func (l *link) known(sent time.Duration) time.Duration {
	if l.up(sent) {
		return sent + l.delay
	}
	return l.To + reunion + l.delay
}

// lost reports whether one flush of tree changes never reaches a node. Loads are never lost,
// because a stream delivers the latest.
func (l *link) lost(origin, node int, sent time.Duration) bool {
	if l.loss == 0 {
		return false
	}
	x := l.seed
	for _, v := range [3]uint64{uint64(origin), uint64(node), uint64(sent / flushEvery)} {
		x = scramble(x + v + 0x9e3779b97f4a7c15)
	}
	return float64(x>>11)/(1<<53) < l.loss
}

func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

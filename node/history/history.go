package history

import (
	"encoding/json"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"

	"grapevine.example/gossip/wire"
)

const (
	// Fine and Coarse are the periods of the two rings: an hour and twelve hours.
	Fine   = 5 * time.Second
	Coarse = time.Minute
	points = 720 // of each ring

	perCoarse = int(Coarse / Fine)
	maxPeers  = 2048 // gossip's members with streams
	maxLags   = 2048 // of one peer
	maxOthers = 512  // of one peer
)

// Series are the columns of a ring.
const (
	Served = iota // requests per second
	Rejected
	Refused
	Failed
	Departed
	TTFT50   // seconds
	TTFT99   // seconds
	HitRate  // cached of prompt tokens, as engines count them
	Random   // the same at engines drawn at random; see Baseline
	InFlight // requests in the fleet's routers
	Waiting  // requests that wait inside engines
	Saved    // seconds of prefill per second that caches saved
	series
)

// Names of the columns in JSON.
var Names = [series]string{
	"served", "rejected", "refused", "failed", "departed", "ttft_p50_s", "ttft_p99_s", "hit_rate", "random_hit_rate", "in_flight", "waiting", "saved_s",
}

// History is what one node knows of the fleet's past: 2 x 720 points of 12 values, 69 kB, and the
// figures of its peers. Safe for concurrent use.
type History struct {
	own *Counts

	mu     sync.Mutex
	was    [figures]uint64 // own, at the last tick
	peers  map[string]*origin
	fine   ring
	coarse ring
	minute [figures]float64
	ticks  int // of the minute

	minutely [figures]float64 // decayed with a minute
}

// origin is one process of a peer.
type origin struct {
	incarnation uint64
	at, wasAt   int64 // Unix ms of the peer's clock
	now, was    [figures]uint64
	lags        map[uint32]uint32
	others      map[uint32]uint64
}

// New returns an empty history. own are this node's counts.
func New(own *Counts) *History {
	return &History{own: own, peers: make(map[string]*origin)}
}

// Peer takes a peer's figures as gossip brings them; see gossip.Knowledge.
func (h *History) Peer(name string, incarnation uint64, at int64, changed []wire.Figure, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[name]
	known := p != nil && p.incarnation == incarnation
	if !known {
		if len(h.peers) >= maxPeers {
			return
		}
		p = &origin{incarnation: incarnation, lags: make(map[uint32]uint32), others: make(map[uint32]uint64)}
		h.peers[name] = p
	}
	p.at = at
	if full {
		p.now = [figures]uint64{}
		clear(p.lags)
		clear(p.others)
	}
	for _, f := range changed {
		value := uint64(f.High)<<32 | uint64(f.Low)
		switch {
		case f.Key&lagKey != 0 && f.Low == 0:
			delete(p.lags, f.Key&^lagKey)
		case f.Key&lagKey != 0 && len(p.lags) < maxLags:
			p.lags[f.Key&^lagKey] = f.Low
		case f.Key < figures:
			p.now[f.Key] = value
		case f.Key >= OtherKey && f.Key < lagKey && value == 0:
			delete(p.others, f.Key)
		case f.Key >= OtherKey && f.Key < lagKey && len(p.others) < maxOthers:
			p.others[f.Key] = value
		}
	}
	if !known { // what the peer did before is nothing of this period
		p.was, p.wasAt = p.now, at
	}
}

// DropPeer forgets a peer that ended or is silent. What it did stays in the rings.
func (h *History) DropPeer(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.peers, name)
}

// Lags returns the lags in milliseconds, rounded to a quarter, that a peer has to its own peers, by
// the hash of their names; ok is false if the peer reports no figures.
func (h *History) Lags(name string) (lags map[uint32]uint32, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[name]
	if p == nil {
		return nil, false
	}
	return maps.Clone(p.lags), true
}

// Others returns a peer's figures from OtherKey on, without zeros; ok is false if the peer reports no figures.
func (h *History) Others(name string) (others map[uint32]uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[name]
	if p == nil {
		return nil, false
	}
	return maps.Clone(p.others), true
}

// Reporting counts the peers whose figures are known.
func (h *History) Reporting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.peers)
}

// Tick ends a period of length Fine. requests are in flight at this node; waiting are inside all
// engines, -1 if no engine reports them.
func (h *History) Tick(at time.Time, requests, waiting int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var sum [figures]float64
	for key := range sum {
		now := h.own[key].Load()
		sum[key], h.was[key] = float64(now-h.was[key]), now
	}
	sum[inFlight] = float64(requests)
	for _, p := range h.peers {
		p.add(&sum)
	}
	for key := range sum {
		h.minute[key] += sum[key]
		h.minutely[key] = h.minutely[key]*(1-1/float64(perCoarse)) + sum[key]
	}
	h.fine.add(at, point(&sum, Fine, 1, waiting))
	if h.ticks++; h.ticks == perCoarse {
		h.coarse.add(at, point(&h.minute, Coarse, perCoarse, waiting))
		h.minute, h.ticks = [figures]float64{}, 0
	}
}

// add adds what the peer did in the period. Its reports, some seconds apart, do not end with the
// period: the time between them scales their difference.
func (p *origin) add(sum *[figures]float64) {
	span := time.Duration(p.at-p.wasAt) * time.Millisecond
	if span > 0 {
		scale := min(max(Fine.Seconds()/span.Seconds(), 0.5), 2)
		for key := range sum {
			if p.now[key] > p.was[key] && key != inFlight {
				sum[key] += scale * float64(p.now[key]-p.was[key])
			}
		}
		p.was, p.wasAt = p.now, p.at
	}
	sum[inFlight] += float64(p.now[inFlight])
}

// point makes the values of a period of some ticks from its sums.
func point(sum *[figures]float64, period time.Duration, ticks, waiting int) (v [series]float32) {
	seconds := period.Seconds()
	v[Served], v[Rejected], v[Refused] = float32(sum[served]/seconds), float32(sum[rejected]/seconds), float32(sum[refused]/seconds)
	v[Failed], v[Departed] = float32(sum[failed]/seconds), float32(sum[departed]/seconds)
	v[TTFT50], v[TTFT99] = float32(quantile(sum[firstBucket:], 0.5)), float32(quantile(sum[firstBucket:], 0.99))
	v[HitRate], v[Random] = float32(sum[cachedTokens]/sum[promptTokens]), float32(min(sum[randomHits]/sum[randomBlocks], 1)) // NaN without prompts
	v[InFlight], v[Saved] = float32(sum[inFlight]/float64(ticks)), float32(sum[savedMicros]/1e6/seconds)
	if v[Waiting] = float32(waiting); waiting < 0 {
		v[Waiting] = float32(math.NaN())
	}
	return v
}

type ring struct {
	values [points][series]float32
	length int
	next   int
	end    time.Time // of the newest
}

func (r *ring) add(at time.Time, v [series]float32) {
	r.values[r.next], r.end = v, at
	r.next = (r.next + 1) % points
	r.length = min(r.length+1, points)
}

// HitRates returns the hit rates of the last minute or so, and those of Baseline; NaN without any.
func (h *History) HitRates() (hitRate, random float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.minutely
	return v[cachedTokens] / v[promptTokens], min(v[randomHits]/v[randomBlocks], 1)
}

// Span is a part of a ring. Its columns, oldest first, have equal lengths.
type Span struct {
	EveryS  float64           `json:"every_s"`
	EndMS   int64             `json:"end_ms"` // Unix ms of the newest point; 0: none
	Columns map[string]Column `json:"columns"`
}

// Span returns the points that ended after since, of the coarse ring or the fine one.
func (h *History) Span(coarse bool, since time.Time) *Span {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, every := &h.fine, Fine
	if coarse {
		r, every = &h.coarse, Coarse
	}
	s := &Span{EveryS: every.Seconds(), Columns: make(map[string]Column, series)}
	n := r.length
	if n > 0 {
		s.EndMS = r.end.UnixMilli()
		age := r.end.Sub(since) // the longest duration, if since is zero
		n = min(n, max(int(age/every)+min(int(age%every), 1), 0))
	}
	for column, name := range Names {
		values := make(Column, n)
		for i := range values {
			values[i] = r.values[(r.next-n+i+points)%points][column]
		}
		s.Columns[name] = values
	}
	return s
}

// Column is a series of values; NaN, in JSON null, means that nothing was measured.
type Column []float32

var _ json.Marshaler = Column(nil)

func (c Column) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 2+5*len(c)), '[')
	for i, v := range c {
		if i > 0 {
			text = append(text, ',')
		}
		if math.IsNaN(float64(v)) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, float64(v), 'g', 4, 32)
		}
	}
	return append(text, ']'), nil
}

// Package family draws fleets and workloads at random over what differs between real sites, plays all
// policies on each in virtual time, and compares prefix with the best other and with itself on one
// node. Equal seeds give equal draws and results.
package family

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"grapevine.example/chaos/fleetsim"
)

// Draw is one site: a fleet, its engines and its traffic. It follows from Seed, Number and Requests.
type Draw struct {
	Seed        uint64    `json:"seed"`
	Number      int       `json:"draw"` // from 1
	Requests    int       `json:"requests"`
	LengthS     int       `json:"length_s"` // the first quarter is warm-up
	Nodes       int       `json:"nodes"`
	StalenessMS int       `json:"staleness_ms"`
	Load        float64   `json:"load"` // see plan
	Engines     int       `json:"engines"`
	Fleet       string    `json:"fleet"` // equal, mixed, degrading, joining
	Models      int       `json:"models"`
	Cache       float64   `json:"cache"` // of all engines, in working sets
	Arrivals    string    `json:"arrivals"`
	Streamed    float64   `json:"streamed"` // share of the sessions
	Traffic     []Traffic `json:"traffic"`
	// Telemetry is what all engines report of their load.
	Telemetry fleetsim.Telemetry `json:"telemetry"`

	eventDelay time.Duration // see fleetsim.Config
}

// Traffic is one kind of sessions. Lengths are means in tokens.
type Traffic struct {
	Kind     string  `json:"kind"`
	Share    float64 `json:"share"` // of the sessions
	Common   int     `json:"common"`
	Pool     int     `json:"pool"` // number of shared texts
	Skew     float64 `json:"skew"` // their i-th is as popular as i^-Skew
	Shared   int     `json:"shared"`
	Own      int     `json:"own"`
	Output   int     `json:"output"`
	Turns    float64 `json:"turns"`  // mean
	Suffix   int     `json:"suffix"` // what each later turn adds
	ThinkMS  int     `json:"think_ms"`
	Branches float64 `json:"branches"` // probability that a turn starts sub-agents
}

type span struct{ lo, hi float64 }

// kinds are the ranges of each kind of traffic. A prompt is the common text, one of the pool, and own
// text. Session ids come with sessions of several turns.
var kinds = []struct {
	name                                string
	common, pool, skew, shared          span
	own, output, turns, suffix, thinkMS span
	branches                            span
}{
	{name: "system prompts", pool: span{1, 30}, skew: span{0.2, 1.2}, shared: span{500, 8000}, own: span{500, 3000}, output: span{50, 600}, turns: span{1, 1}},
	{name: "documents", common: span{200, 2000}, pool: span{100, 3000}, skew: span{0.6, 1.3}, shared: span{2000, 16000}, own: span{100, 1000}, output: span{50, 500}, turns: span{1, 1}},
	{name: "conversations", pool: span{1, 10}, skew: span{0.2, 1.2}, shared: span{100, 3000}, own: span{500, 6000}, output: span{100, 800}, turns: span{2, 8}, suffix: span{300, 3000}, thinkMS: span{2000, 15000}},
	{name: "agents", pool: span{1, 8}, skew: span{0.2, 1.2}, shared: span{4000, 16000}, own: span{1000, 8000}, output: span{50, 300}, turns: span{4, 16}, suffix: span{500, 4000}, thinkMS: span{200, 2000}, branches: span{0.05, 0.2}},
	{name: "unique prompts", own: span{1000, 12000}, output: span{50, 600}, turns: span{1, 1}},
}

var (
	fleetKinds   = []string{"equal", "mixed", "degrading", "joining"}
	arrivalKinds = []string{"poisson", "bursts", "daily"}
	nodeCounts   = []int{1, 2, 3, 8, 16, 32, 100}
	delaysMS     = []int{0, 50, 200, 1000, 5000}
	modelCounts  = []int{1, 1, 2, 3}
	streamed     = []float64{1, 1, 0.7, 0.3, 0}
)

// Streams of random numbers: one per parameter keeps parameters independent.
const (
	streamNodes = iota + 1
	streamDelay
	streamLoad
	streamFleet
	streamArrivals
	streamTraffic
	streamCache
	streamModels
	streamRest
	streamCalls
	streamEngines
	streamTelemetry
)

// NewDraw returns a draw of a seed. Requests above 0 replace the usual number of measured ones.
func NewDraw(seed uint64, number, requests int) Draw {
	d := Draw{Seed: seed, Number: number}
	d.Nodes = nodeCounts[d.deal(streamNodes, len(nodeCounts))]
	if d.Nodes > 1 {
		d.StalenessMS = delaysMS[d.deal(streamDelay, len(delaysMS))]
	}
	d.Load = round(0.3 + 0.65*d.even(streamLoad, math.Phi-1))
	d.Cache = round(0.3 * math.Pow(10, d.even(streamCache, math.Sqrt2-1)))
	d.Fleet = fleetKinds[d.deal(streamFleet, len(fleetKinds))]
	d.Arrivals = arrivalKinds[d.deal(streamArrivals, len(arrivalKinds))]
	d.Models = modelCounts[d.deal(streamModels, len(modelCounts))]
	rng := d.random(streamRest)
	d.Engines = span{4, 32}.draw(rng)
	d.Streamed = streamed[rng.IntN(len(streamed))]
	d.LengthS = span{150, 300}.draw(rng)
	if d.Requests = requests; requests == 0 {
		d.Requests = d.usual()
	}
	d.traffic(rng)
	d.Telemetry = d.drawnTelemetry()
	return d
}

func (d *Draw) drawnTelemetry() fleetsim.Telemetry {
	return fleetsim.Telemetries[d.deal(streamTelemetry, len(fleetsim.Telemetries))]
}

// traffic mixes one to three kinds; the first has the largest share.
func (d *Draw) traffic(rng *rand.Rand) {
	first := d.deal(streamTraffic, len(kinds))
	order := append([]int{first}, rng.Perm(len(kinds))...)
	n, left := 1+rng.IntN(3), 1.0
	for i, k := range order {
		if i > 0 && k == first {
			continue
		}
		share := left
		if n > 1 {
			share = round(left * (0.5 + 0.3*rng.Float64()))
		}
		left -= share
		k := &kinds[k]
		d.Traffic = append(d.Traffic, Traffic{
			Kind: k.name, Share: round(share), Common: k.common.draw(rng), Pool: k.pool.draw(rng), Skew: round(k.skew.lo + (k.skew.hi-k.skew.lo)*rng.Float64()),
			Shared: k.shared.draw(rng), Own: k.own.draw(rng), Output: k.output.draw(rng), Turns: float64(k.turns.draw(rng)),
			Suffix: k.suffix.draw(rng), ThinkMS: k.thinkMS.draw(rng), Branches: round(k.branches.lo + (k.branches.hi-k.branches.lo)*rng.Float64()),
		})
		if n--; n == 0 {
			return
		}
	}
}

// draw returns a number of the span, each order of magnitude equally likely.
func (s span) draw(rng *rand.Rand) int {
	u := rng.Float64()
	if s.lo == 0 {
		return 0
	}
	return int(math.Round(s.lo * math.Pow(s.hi/s.lo, u)))
}

func (d *Draw) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(d.Seed, stream<<32|uint64(d.Number)))
}

// deal returns a number below n. Each n successive draws take the numbers of one shuffle, so they have
// all.
func (d *Draw) deal(stream uint64, n int) int {
	at := d.Number - 1
	return rand.New(rand.NewPCG(d.Seed, stream<<32|uint64(at/n))).Perm(n)[at%n]
}

// even returns a number below 1. Successive draws are a step apart (modulo 1), which covers the range
// evenly if the step is a badly approximable number.
func (d *Draw) even(stream uint64, step float64) float64 {
	start := rand.New(rand.NewPCG(d.Seed, stream<<32)).Float64()
	_, u := math.Modf(start + step*float64(d.Number))
	return u
}

func round(x float64) float64 { return math.Round(x*100) / 100 }

func (d *Draw) length() time.Duration { return time.Duration(d.LengthS) * time.Second }

func (d *Draw) warmup() time.Duration { return d.length() / 4 }

// usual is how many requests are measured, so that engines have a realistic speed.
func (d *Draw) usual() int { return 2000 + 4000*(d.Engines-4)/28 }

// Command repeats the draw.
func (d *Draw) Command() string {
	line := fmt.Sprintf("grapevine-lab simulate --family-draw %d --seed %d", d.Number, d.Seed)
	if d.Requests != d.usual() {
		line += fmt.Sprintf(" --requests %d", d.Requests)
	}
	if d.Telemetry != d.drawnTelemetry() {
		line += fmt.Sprintf(" --telemetry %s", d.Telemetry)
	}
	return line
}

// String is the draw in one line.
func (d *Draw) String() string {
	var mix []string
	for i := range d.Traffic {
		t := &d.Traffic[i]
		s := fmt.Sprintf("%.0f %% %s (", 100*t.Share, t.Kind)
		if t.Pool > 0 {
			s += fmt.Sprintf("%d of %d tokens, ", t.Pool, t.Common+t.Shared)
		}
		s += fmt.Sprintf("%d own, %d out", t.Own, t.Output)
		if t.Turns > 1 {
			s += fmt.Sprintf(", %.0f turns of %d every %.1f s", t.Turns, t.Suffix, float64(t.ThinkMS)/1000)
		}
		mix = append(mix, s+")")
	}
	nodes := "1 node"
	if d.Nodes > 1 {
		nodes = fmt.Sprintf("%d nodes, %d ms", d.Nodes, d.StalenessMS)
	}
	return fmt.Sprintf("%s; load %.2f; %d engines, %s, %d model(s), cache %.2f; %s, %.0f %% streamed, %d requests in %d s; %s; telemetry %s",
		nodes, d.Load, d.Engines, d.Fleet, d.Models, d.Cache, d.Arrivals, 100*d.Streamed, d.Requests, d.LengthS, strings.Join(mix, ", "), d.Telemetry)
}

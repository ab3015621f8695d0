package scenario

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"grapevine.example/chaos/fleet"
)

type dice struct {
	*rand.Rand
	nodes, engines []string
	from, to       time.Duration
}

func newDice(seed uint64, nodes, engines int, length time.Duration) *dice {
	return &dice{rand.New(rand.NewPCG(seed, 0xc4a05)), fleet.Names("node", nodes), fleet.Names("engine", engines), leadTime, length - tailTime}
}

func (d *dice) some(list []string, n int) []string {
	out := make([]string, min(n, len(list)))
	for i, at := range d.Perm(len(list))[:len(out)] {
		out[i] = list[at]
	}
	return out
}

// part is the time for faults between two percentages, its ends moved inwards by up to a tenth.
func (d *dice) part(from, to int) (at, length time.Duration) {
	whole := (d.to - d.from) * time.Duration(to-from) / 100
	jitter := time.Duration(d.Int64N(int64(whole / 10)))
	return round(d.from + (d.to-d.from)*time.Duration(from)/100 + jitter), round(whole - whole/10 - jitter)
}

var drawn = regexp.MustCompile(`\$\w+|\{[^}]*\}`)

// fill replaces groups of nodes ($node) at random, $engine1 and so on in the given order, {a|b} by
// a choice and {from-to} by a number.
func (d *dice) fill(what string, engines []string) string {
	n := d.some(d.nodes, len(d.nodes))
	cut := 1 + d.IntN(len(n)-1)
	groups := map[string][]string{
		"$nodes": n, "$node": n[:1], "$others": n[1:], "$two": n[:2], "$rest": n[2:], "$half": n[:len(n)/2], "$left": n[:cut], "$right": n[cut:],
		"$any": d.some(append(slices.Clone(n), LeaderName), 1), "$later": d.some(d.nodes[1:], 1),
	}
	for i, name := range engines {
		groups[fmt.Sprintf("$engine%d", i+1)] = []string{name}
	}
	return drawn.ReplaceAllStringFunc(what, func(word string) string {
		if word[0] == '$' {
			return strings.Join(groups[word], ",")
		}
		word = strings.Trim(word, "{}")
		var from, to int
		if _, err := fmt.Sscanf(word, "%d-%d", &from, &to); err == nil {
			return strconv.Itoa(from + d.IntN(to-from+1))
		}
		return d.some(strings.Split(word, "|"), 1)[0]
	})
}

// script parses events, separated by semicolons, in the words of fill. Each begins with its part of
// the time in percent, as in 0-50, and may end with "for all", that part, or "for all-1s".
func (d *dice) script(text string) (s Schedule) {
	engines := d.some(d.engines, len(d.engines))
	for line := range strings.SplitSeq(text, "; ") {
		var from, to int
		when, what, _ := strings.Cut(line, " ")
		if _, err := fmt.Sscanf(when, "%d-%d", &from, &to); err != nil {
			panic(fmt.Sprintf("scenario: %q: %v", line, err))
		}
		at, length := d.part(from, to)
		what, lasts, _ := strings.Cut(what, " for ")
		less, all := strings.CutPrefix(lasts, "all")
		lasting, _ := time.ParseDuration(cmp.Or(strings.TrimPrefix(less, "-"), "0s"))
		if all {
			lasting = length - lasting
		}
		s = append(s, event(at, lasting, "%s", d.fill(what, engines)))
	}
	return s
}

func round(d time.Duration) time.Duration { return d.Truncate(100 * time.Millisecond) }

func event(at, length time.Duration, format string, args ...any) Event {
	line := fmt.Sprintf("%v %s", at, fmt.Sprintf(format, args...))
	if length > 0 {
		line += " for " + length.String()
	}
	e, err := parseEvent(strings.Fields(line))
	if err != nil {
		panic(fmt.Sprintf("scenario: %q: %v", line, err))
	}
	return e
}

package config

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"grapevine.example/raftstore"
)

// A data-parallel rank of an engine has a KV cache and a queue of its own. Behind the # of an engine's URL stands rank=K for one of
// them; ranks=N for all N, each a backend; or ranks for as many as the engine has.
const allRanks = "ranks"

// checkRanks normalises the fragment of an engine's URL, and returns the rank's addition to the default name.
func checkRanks(u *url.URL) (suffix string, err error) {
	key, value, given := strings.Cut(u.Fragment, "=")
	n, errNumber := strconv.ParseUint(value, 10, 16)
	switch {
	case u.Fragment == "", u.Fragment == allRanks:
		return "", nil
	case given && errNumber == nil && key == "rank" && n < raftstore.MaxRanks:
		suffix = "@" + strconv.FormatUint(n, 10)
	case given && errNumber == nil && key == allRanks && n > 0 && n <= raftstore.MaxRanks:
	default:
		return "", fmt.Errorf("url ends in #%s: write #rank=K for one data-parallel rank of the engine, #ranks=N for all N, at most %d", u.Fragment, raftstore.MaxRanks)
	}
	u.Fragment, u.RawFragment = key+"="+strconv.FormatUint(n, 10), ""
	return suffix, nil
}

// Ranks returns the N of a checked URL that ends in #ranks=N, 0 for #ranks, and -1 for the URL of one backend.
func Ranks(url string) int {
	_, fragment, _ := strings.Cut(url, "#")
	key, value, _ := strings.Cut(fragment, "=")
	if key != allRanks {
		return -1
	}
	n, _ := strconv.Atoi(value)
	return n
}

// OfRank returns name and URL of one data-parallel rank of the engine at a URL with #ranks.
func OfRank(name, url string, rank int) (string, string) {
	engine, _, _ := strings.Cut(url, "#")
	k := strconv.Itoa(rank)
	return name + "@" + k, engine + "#rank=" + k
}

// Each checks b, and returns it or, for #ranks=N, a backend per rank.
func (b *Backend) Each() ([]Backend, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	n := Ranks(b.URL)
	switch {
	case n < 0:
		return []Backend{*b}, nil
	case b.Events != "" && b.Events != EventsOff:
		return nil, fmt.Errorf("events %q is the stream of one rank: write #rank=K and its address for each rank, or leave events out, so that the engine is asked", b.Events)
	case n == 0:
		return nil, fmt.Errorf("url %q does not say how many ranks: write #ranks=N, or use grapevine backends add, which asks the engine", b.URL)
	}
	list := make([]Backend, n)
	for rank := range list {
		list[rank] = *b
		list[rank].Name, list[rank].URL = OfRank(b.Name, b.URL, rank)
	}
	return list, nil
}

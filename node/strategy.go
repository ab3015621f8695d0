package node

import "slices"

// strategies are the names a configuration may use.
var strategies = []string{"prefix", "prefix-hash", "least-request", "session", "round-robin", "random", "weighted"}

func knownStrategy(name string) bool { return slices.Contains(strategies, name) }

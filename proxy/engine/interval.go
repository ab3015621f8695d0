package engine

import "time"

// Bounds of the polls of loads and metrics, per second. An engine answers them in the process that also
// serves requests.
const (
	pollsOfNode   = 200 // that one node makes
	pollsOfEngine = 50  // that one engine gets from all nodes
)

// PollInterval returns how often each of so many nodes polls each of so many engines: every is the wish,
// which larger fleets exceed. With 2,000 engines and 100 nodes it is 10 s.
func PollInterval(every time.Duration, engines, nodes int) time.Duration {
	return max(every, time.Duration(engines)*time.Second/pollsOfNode, time.Duration(nodes)*time.Second/pollsOfEngine)
}

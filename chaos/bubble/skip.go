package bubble

import "testing"

// SkipInRace skips a test in race builds. It is for tests that compute for seconds in
// goroutines that share no more than those of a shorter test beside them: the race
// detector makes them ten to twenty times as slow and finds nothing more. make test runs
// the packages that call it once more, without the detector.
func SkipInRace(t *testing.T) {
	t.Helper()
	if race {
		t.Skip("a long computation: runs without the race detector")
	}
}

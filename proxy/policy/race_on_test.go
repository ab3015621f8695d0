//go:build race

package policy

const raceDetector = true // it empties pools at random, so they allocate

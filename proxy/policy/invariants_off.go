//go:build !race && !invariants

package policy

const invariants = false // turns misuse of an Attempt into a panic

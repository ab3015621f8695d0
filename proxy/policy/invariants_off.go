//go:build !race && !invariants

package policy

// invariants turns misuse of an Attempt into a panic.
const invariants = false

//go:build !race && !invariants

package policy

// invariants turns misuse of an Attempt into a panic; here it is counted instead.
const invariants = false

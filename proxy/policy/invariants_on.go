//go:build race || invariants

package policy

const invariants = true // turns misuse of an Attempt into a panic

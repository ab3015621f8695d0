//go:build !newer

package member

// For the newer build; see release_newer.go.
type laterFields struct{}

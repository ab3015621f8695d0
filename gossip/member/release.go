//go:build !newer

package member

// laterFields is a hook for the newer build; see release_newer.go.
type laterFields struct{}

var later laterFields

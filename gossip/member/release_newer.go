//go:build newer

package member

// Skipped by the present release.
type laterFields struct {
	Later string `json:"later"`
}

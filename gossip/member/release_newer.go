//go:build newer

package member

// laterFields adds a field unknown to the present release, to test that it is skipped.
type laterFields struct {
	Later string `json:"later"`
}

var later = laterFields{"field"}

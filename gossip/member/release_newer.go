//go:build newer

package member

// laterTags adds a field unknown to the present release, to test that it is skipped.
func laterTags(dst []byte) []byte { return append(dst, 250, 5, 'l', 'a', 't', 'e', 'r') }

//go:build newer

package node

// laterSections adds a section unknown to this release, for tests of mixed versions.
func laterSections(dst []byte) []byte { return appendSection(dst, 250, []byte("later")) }

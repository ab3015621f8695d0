//go:build newer

package node

import "grapevine.example/node/share"

// laterSections adds a section unknown to this release, for tests of mixed versions.
func laterSections(dst []byte) []byte { return share.AppendSection(dst, 250, []byte("later")) }

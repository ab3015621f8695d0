package commandline

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// linked is the version that the Makefile sets: -X grapevine.example/cmd/commandline.linked=...
var linked string

// Version returns the version of this program: as the Makefile set it, else the module's as go install
// knows it, else "dev".
func Version() string {
	installed := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		installed = strings.TrimSuffix(info.Main.Version, "(devel)")
	}
	return cmp.Or(linked, installed, "dev")
}

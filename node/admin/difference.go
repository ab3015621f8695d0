package admin

import (
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// difference returns all lines: "-" removed, "+" added, blank unchanged. It is "" for equal texts.
func difference(from, to string) string {
	from, to = wholeLines(from), wholeLines(to)
	text, _ := udiff.ToUnified("", "", from, udiff.Lines(from, to), len(from)) // fails for foreign edits only
	for range 3 {                                                              // names and position
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

func wholeLines(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}

package admin

import "strings"

// maxDifference bounds the product of the differing lines; above it the whole middle counts as
// replaced.
const maxDifference = 4 << 20

// difference returns a line diff: "-" removed, "+" added, blank unchanged.
func difference(from, to string) string {
	if from == to {
		return ""
	}
	a, b := splitLines(from), splitLines(to)
	var out strings.Builder
	put := func(sign byte, lines []string) {
		for _, l := range lines {
			out.WriteByte(sign)
			out.WriteString(l)
			out.WriteByte('\n')
		}
	}
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	put(' ', a[:head])
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(x)*len(y) > maxDifference {
		put('-', x)
		put('+', y)
	} else {
		common(x, y, put)
	}
	put(' ', a[len(a)-tail:])
	return out.String()
}

func common(x, y []string, put func(sign byte, lines []string)) {
	// length[i][j] is that of x[i:] and y[j:].
	length := make([][]int32, len(x)+1)
	for i := range length {
		length[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(x) && j < len(y) {
		switch {
		case x[i] == y[j]:
			put(' ', x[i:i+1])
			i++
			j++
		case length[i+1][j] >= length[i][j+1]:
			put('-', x[i:i+1])
			i++
		default:
			put('+', y[j:j+1])
			j++
		}
	}
	put('-', x[i:])
	put('+', y[j:])
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// Package nearest finds the name that a mistyped one was meant to be.
package nearest

// Name returns the name that takes the fewest edits of a byte to become word, at most a third of its length,
// rounded up; "" if none does.
func Name(word string, names []string) string {
	best, bestDistance := "", (len(word)+2)/3+1
	for _, name := range names {
		if d := distance(word, name); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance counts the bytes to insert, delete or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next := min(row[j]+1, row[j-1]+1, diagonal+cost)
			diagonal, row[j] = row[j], next
		}
	}
	return row[len(b)]
}

package scenario

// WriteHTML writes verdicts and timelines of runs to a file, as one page.
func WriteHTML(path string, runs ...*Report) error { return nil }

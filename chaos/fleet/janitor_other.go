//go:build !unix

package fleet

// janitor does nothing where there is no shell: a killed process leaves its directory.
type janitor struct{}

func newJanitor(string) (*janitor, error) { return &janitor{}, nil }

// Close does nothing.
func (*janitor) Close() error { return nil }

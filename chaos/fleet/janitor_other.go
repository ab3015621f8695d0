//go:build !unix

package fleet

type janitor struct{}

func newJanitor(string) (*janitor, error) { return &janitor{}, nil }

// Close does nothing.
func (*janitor) Close() error { return nil }

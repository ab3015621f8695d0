package traces

import (
	"fmt"
	"net/http"
	"strings"
)

// ParseHeaders reads the headers that posts to a collector carry besides their content: lines of "Name: value". Blank lines and those
// that begin with # are left out. They hold credentials, so an error names the line and the header and shows no value.
func ParseHeaders(text string) (http.Header, error) {
	headers := make(http.Header)
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key := http.CanonicalHeaderKey(name); {
		case !ok || name == "" || strings.ContainsFunc(name, notInName):
			return nil, fmt.Errorf("line %d: want Name: value", i+1)
		case value == "" || strings.ContainsFunc(value, notInValue):
			return nil, fmt.Errorf("line %d: %s: the value is empty or holds a character that no header may hold", i+1, name)
		case key == "Host" || key == "Connection" || key == "Transfer-Encoding" || strings.HasPrefix(key, "Content-"):
			return nil, fmt.Errorf("line %d: the exporter sets %s itself: leave it out", i+1, name)
		default:
			headers.Add(key, value)
		}
	}
	return headers, nil
}

func notInName(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

func notInValue(r rune) bool { return (r < ' ' && r != '\t') || r > '~' }

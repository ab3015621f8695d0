package proxy

import (
	"bytes"
	"errors"
	"strings"
)

// Tenant names the headers that identify a tenant. Tenants share no cached prompts. The zero value
// has a single tenant.
type Tenant struct{ headers []string }

var errTenant = errors.New("tenant: want none, credential or header:NAME, NAME being a header that is passed on to engines")

// ParseTenant reads "none", "credential" (Authorization and X-Api-Key) or "header:NAME", which
// clients must not be able to choose.
func ParseTenant(s string) (Tenant, error) {
	name, named := strings.CutPrefix(s, "header:")
	switch {
	case s == "" || s == "none":
		return Tenant{}, nil
	case s == "credential":
		return Tenant{[]string{"Authorization", "X-Api-Key"}}, nil
	case !named:
		return Tenant{}, errTenant
	}
	var h requestHead
	h.scan([]byte(name+": x\r\n\r\n"), scanOptions{plainAnswer: true})
	if string(h.block) != name+": x\r\n" {
		return Tenant{}, errTenant
	}
	return Tenant{[]string{name}}, nil
}

// of appends a request's tenant to dst. All lines of a name count, so that adding one cannot
// imitate another tenant.
func (t Tenant) of(dst, lines []byte) []byte {
	for _, name := range t.headers {
		dst = append(dst, '\n') // cannot occur in a value
		for line := range bytes.Lines(lines) {
			if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
				dst = append(dst, bytes.TrimSpace(line[len(name)+1:])...)
				dst = append(dst, 0)
			}
		}
	}
	return dst
}

func (t Tenant) lines(header func(name string) []byte) (lines []byte) {
	for _, name := range t.headers {
		if value := header(name); len(value) > 0 {
			lines = appendHeader(lines, []byte(name), value)
		}
	}
	return lines
}

package proxy

import (
	"bytes"
	"errors"
	"strings"
)

// Tenant says which headers of a request identify whose prompt it is. Prompts of different tenants
// share no cache: neither what this router knows of the engines' caches, nor the engines' own, where
// they take a salt in the body. The zero value does not tell tenants apart.
type Tenant struct{ headers []string }

var errTenant = errors.New("tenant: want none, credential or header:NAME, NAME being a header that is passed on to engines")

// ParseTenant reads none, credential (Authorization and X-Api-Key) or header:NAME. Something in front
// of the router must set that header, or clients choose their tenant themselves.
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

// of appends to dst what identifies the tenant of a request with these header lines: nothing if
// tenants are not told apart, else something in any case, as clients without a credential are a
// tenant, too. Names count as they are spelled but for case, so that who sets X-Tenant need not know
// of X_Tenant. All lines of a name count, so that adding one cannot make a client another's equal.
func (t Tenant) of(dst, lines []byte) []byte {
	for _, name := range t.headers {
		dst = append(dst, '\n') // which no value holds
		for line := range bytes.Lines(lines) {
			if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
				dst = append(dst, bytes.TrimSpace(line[len(name)+1:])...)
				dst = append(dst, 0)
			}
		}
	}
	return dst
}

// lines renders those headers that identify a tenant as they stand in a request.
func (t Tenant) lines(header func(name string) []byte) (lines []byte) {
	for _, name := range t.headers {
		if value := header(name); len(value) > 0 {
			lines = appendHeader(lines, []byte(name), value)
		}
	}
	return lines
}

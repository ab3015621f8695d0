package proxy

import (
	"bytes"
	"errors"
	"strings"
)

// Tenant names the headers that identify a request's tenant. Prompts of different tenants share no
// cache: neither in the router's tree nor, where engines take a salt, in the engines. The zero
// value does not tell tenants apart.
type Tenant struct{ headers []string }

var errTenant = errors.New("tenant: want none, credential or header:NAME, NAME being a header that is passed on to engines")

// ParseTenant reads "none", "credential" (Authorization and X-Api-Key) or "header:NAME". A proxy in
// front of the router must set that header, or clients can choose their tenant.
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

// of appends to dst what identifies the tenant of a request with these header lines; nothing if t
// is the zero value. A request without the headers is a tenant too. Names match exactly except for
// case. All lines of a name count, so that adding a line cannot imitate another tenant.
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

// lines returns the identifying headers as header lines.
func (t Tenant) lines(header func(name string) []byte) (lines []byte) {
	for _, name := range t.headers {
		if value := header(name); len(value) > 0 {
			lines = appendHeader(lines, []byte(name), value)
		}
	}
	return lines
}

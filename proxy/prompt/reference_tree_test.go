package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// names and items are parallel for an object.
type node struct {
	kind  byte // '{' '[' '"' '0' 't' 'f' 'n'
	text  string
	names []string
	items []*node
}

var escapes16 = regexp.MustCompile(`\\(?:u([0-9a-fA-F]{4})|[^u])`)

var errReference = errors.New("reference: not a body")

func parseNode(body []byte) (*node, error) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, errReference
	}
	// In valid JSON backslashes occur only in strings.
	pending := -1 // end of a high surrogate that awaits its low one
	for _, m := range escapes16.FindAllSubmatchIndex(body, -1) {
		v := 0
		if m[2] >= 0 {
			n, _ := strconv.ParseUint(string(body[m[2]:m[3]]), 16, 16)
			v = int(n)
		}
		low := v >= 0xDC00 && v <= 0xDFFF
		if low != (pending == m[0]) || pending >= 0 && pending != m[0] {
			return nil, errReference
		}
		pending = -1
		if v >= 0xD800 && v <= 0xDBFF {
			pending = m[1]
		}
	}
	if pending >= 0 {
		return nil, errReference
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	return readNode(dec, 0)
}

func readNode(dec *json.Decoder, depth int) (*node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case json.Delim:
		if depth++; depth > MaxDepth {
			return nil, errReference
		}
		n := &node{kind: byte(v)}
		for dec.More() {
			name := ""
			if v == '{' {
				tok, err := dec.Token()
				if err != nil {
					return nil, err
				}
				name = tok.(string)
			}
			item, err := readNode(dec, depth)
			if err != nil {
				return nil, err
			}
			n.put(name, item)
		}
		_, err := dec.Token()
		return n, err
	case string:
		return &node{kind: '"', text: v}, nil
	case json.Number:
		return &node{kind: '0', text: string(v)}, nil
	case bool:
		return &node{kind: strconv.FormatBool(v)[0]}, nil
	}
	return &node{kind: 'n'}, nil
}

func (n *node) put(name string, item *node) {
	if n.kind == '{' {
		for i := range n.names {
			if n.names[i] == name {
				n.items[i] = item
				return
			}
		}
		n.names = append(n.names, name)
	}
	n.items = append(n.items, item)
}

func (n *node) get(name string) *node {
	for i := range n.names {
		if n.names[i] == name && n.items[i].kind != 'n' {
			return n.items[i]
		}
	}
	return nil
}

func (n *node) is(kind byte) bool { return n != nil && n.kind == kind }

func canonical(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r >= ' ':
			b.WriteRune(r)
		default:
			if e, ok := map[rune]string{'\n': `\n`, '\t': `\t`, '\r': `\r`, '\b': `\b`, '\f': `\f`}[r]; ok {
				b.WriteString(e)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
	}
	return b.String()
}

func canonicalNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		if s == "-0" {
			return "0"
		}
		return s
	}
	f, _ := strconv.ParseFloat(s, 64)
	return strconv.FormatFloat(f, 'e', -1, 64)
}

func (n *node) order(sorted bool) []int {
	idx := make([]int, len(n.names))
	for i := range idx {
		idx[i] = i
	}
	if sorted {
		sort.Slice(idx, func(a, b int) bool { return canonical(n.names[idx[a]]) < canonical(n.names[idx[b]]) })
	}
	return idx
}

func (n *node) json(sorted bool) string {
	switch n.kind {
	case '"':
		return `"` + canonical(n.text) + `"`
	case '0':
		return canonicalNumber(n.text)
	case 't':
		return "true"
	case 'f':
		return "false"
	case 'n':
		return "null"
	}
	var b strings.Builder
	b.WriteByte(n.kind)
	if n.kind == '[' {
		for _, it := range n.items {
			b.WriteString(it.json(sorted) + ",")
		}
		return b.String() + "]"
	}
	for _, i := range n.order(sorted) {
		b.WriteString(`"` + canonical(n.names[i]) + `":` + n.items[i].json(sorted) + ",")
	}
	return b.String() + "}"
}

package engine

import (
	"bytes"
	"iter"
	"strings"
)

// This JSON reader trusts its input and checks only its bounds. Engines send no escaped names.

// membersOf yields names, without quotes, and values of an object up to a syntax error.
func membersOf(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		at := opened(object, '{')
		for at > 0 {
			var name, value []byte
			if name, value, at = member(object, at); at < 0 || !yield(name, value) {
				return
			}
		}
	}
}

// elementsOf yields the values of an array up to a syntax error.
func elementsOf(array []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		at := opened(array, '[')
		for at > 0 {
			from := skipComma(array, at)
			if at = skipValue(array, from); at < 0 || !yield(array[from:at]) {
				return
			}
		}
	}
}

// The functions below return the index behind what they read, or -1.
func opened(b []byte, bracket byte) int {
	at := skipSpace(b, 0)
	if at >= len(b) || b[at] != bracket {
		return -1
	}
	return at + 1
}

// member reads the member at or behind a comma at b[at].
func member(b []byte, at int) (name, value []byte, end int) {
	at = skipComma(b, at)
	if at >= len(b) || b[at] != '"' {
		return nil, nil, -1
	}
	colon := skipString(b, at)
	if colon < 0 {
		return nil, nil, -1
	}
	name = b[at+1 : colon-1]
	colon = skipSpace(b, colon)
	if colon >= len(b) || b[colon] != ':' {
		return nil, nil, -1
	}
	at = skipSpace(b, colon+1)
	if end = skipValue(b, at); end < 0 {
		return nil, nil, -1
	}
	return name, b[at:end], end
}

func skipComma(b []byte, i int) int {
	if i = skipSpace(b, i); i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	i++
	for i <= len(b) {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		i += n + 1
		if !escaped(b, i-1) {
			return i
		}
	}
	return -1
}

func escaped(b []byte, i int) bool {
	n := i
	for n > 0 && b[n-1] == '\\' {
		n--
	}
	return (i-n)&1 == 1
}

func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
	case ',', ':', '}', ']':
		return -1
	default:
		for i < len(b) && !ends(b[i]) {
			i++
		}
		return i
	}
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

func ends(c byte) bool { return strings.IndexByte(",:}] \n\r\t", c) >= 0 }

const maxCandidates = 64

// lastMember returns the object that is the last member of this quoted name in the outermost
// object, or nil: an unescaped quoted name is a whole string, and is outermost if its object ends
// where the body ends.
func lastMember(body []byte, quoted string) []byte {
	end := len(body)
	for range maxCandidates {
		i := bytes.LastIndex(body[:end], []byte(quoted))
		if i < 0 {
			return nil
		}
		end = i
		if escaped(body, i) {
			continue
		}
		at := skipSpace(body, i+len(quoted))
		if at >= len(body) || body[at] != ':' {
			continue
		}
		at = skipSpace(body, at+1)
		if at >= len(body) || body[at] != '{' {
			continue
		}
		stop := skipValue(body, at)
		if stop < 0 {
			return nil
		}
		last := stop
		for next := stop; next > 0; _, _, next = member(body, next) {
			last = next
		}
		last = skipSpace(body, last)
		if last < len(body) && body[last] == '}' && skipSpace(body, last+1) == len(body) {
			return body[at:stop]
		}
	}
	return nil
}

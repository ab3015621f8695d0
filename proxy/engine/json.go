package engine

import "bytes"

// This JSON reader trusts its input and checks only its bounds. It does not decode escaped names;
// engines send none.

type members struct {
	b          []byte
	at         int // -1 at the end
	key, value []byte
}

func membersOf(object []byte) members {
	at := skipSpace(object, 0)
	if at >= len(object) || object[at] != '{' {
		return members{at: -1}
	}
	return members{b: object, at: at + 1}
}

func (m *members) next() bool {
	if m.at < 0 {
		return false
	}
	b := m.b
	at := skipSpace(b, m.at)
	if at < len(b) && b[at] == ',' {
		at = skipSpace(b, at+1)
	}
	m.at = -1
	if at >= len(b) || b[at] != '"' {
		return false
	}
	end := skipString(b, at)
	if end < 0 {
		return false
	}
	m.key = b[at+1 : end-1]
	at = skipSpace(b, end)
	if at >= len(b) || b[at] != ':' {
		return false
	}
	at = skipSpace(b, at+1)
	if end = skipValue(b, at); end < 0 {
		return false
	}
	m.value = b[at:end]
	m.at = end
	return true
}

type elements struct {
	b     []byte
	at    int
	value []byte
}

func elementsOf(array []byte) elements {
	at := skipSpace(array, 0)
	if at >= len(array) || array[at] != '[' {
		return elements{at: -1}
	}
	return elements{b: array, at: at + 1}
}

func (e *elements) next() bool {
	if e.at < 0 {
		return false
	}
	at := skipSpace(e.b, e.at)
	if at < len(e.b) && e.b[at] == ',' {
		at = skipSpace(e.b, at+1)
	}
	end := skipValue(e.b, at)
	e.at = end
	if end < 0 {
		return false
	}
	e.value = e.b[at:end]
	return true
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString returns the index behind the string at i, or -1.
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

// skipValue returns the index behind the value at i, or -1.
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

func ends(c byte) bool {
	switch c {
	case ',', ':', '}', ']', ' ', '\n', '\r', '\t':
		return true
	}
	return false
}

const maxCandidates = 64

// lastMember returns the object that is the last member of this quoted name in the outermost
// object, or nil. An unescaped quoted name is a whole string, and belongs to the outermost object
// if its object ends where the body ends.
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
		rest := members{b: body, at: stop}
		last := stop
		for rest.next() {
			last = rest.at
		}
		last = skipSpace(body, last)
		if last < len(body) && body[last] == '}' && skipSpace(body, last+1) == len(body) {
			return body[at:stop]
		}
	}
	return nil
}

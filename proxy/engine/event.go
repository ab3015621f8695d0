package engine

import "bytes"

var (
	dataField = []byte("data:")
	doneData  = []byte("[DONE]")
)

// look reads an event and reports whether it carries only usage.
func (s *Stream) look(event []byte, seen *Seen) (usageOnly bool) {
	data := s.dataOf(event)
	if len(data) == 0 {
		return false
	}
	if bytes.Equal(data, doneData) {
		seen.Done = true
		return false
	}
	if s.tokens && !s.mayMatter(data) {
		return false
	}
	return s.read(data, seen)
}

func (s *Stream) dataOf(event []byte) (data []byte) {
	lines := 0
	for line := range bytes.Lines(event) {
		line, found := bytes.CutPrefix(bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), dataField)
		if !found {
			continue
		}
		line = bytes.TrimPrefix(line, []byte(" "))
		if lines++; lines == 1 {
			data = line
			continue
		}
		if lines == 2 {
			s.data = append(s.data[:0], data...)
		}
		s.data = append(append(s.data, '\n'), line...)
		data = s.data
	}
	return data
}

// mayMatter searches for patterns that begin with letters, which are rarer than quotes and so found
// faster.
func (s *Stream) mayMatter(data []byte) bool {
	if bytes.Contains(data, []byte(`usage"`)) {
		return true
	}
	return !s.choices && (bytes.Contains(data, []byte(`meta_info"`)) || bytes.Contains(data, []byte("message_stop")) ||
		bytes.Contains(data, []byte("response.")))
}

func (s *Stream) read(data []byte, seen *Seen) (usageOnly bool) {
	var (
		choices, kind, text                       []byte
		noChoices, usage, meta, failed, something bool
	)
	for name, value := range membersOf(data) {
		something = true
		switch string(name) {
		case "choices":
			choices = value
			noChoices = isEmptyArray(value)
		case "usage":
			usage = value[0] == '{'
			s.counts.merge(value)
		case "meta_info":
			meta = value[0] == '{'
			s.counts.merge(value)
		case "type":
			kind = value
		case "response", "message":
			for inner, counts := range membersOf(value) {
				if string(inner) == "usage" {
					s.counts.merge(counts)
				}
			}
		case "text", "output_ids":
			if !isBlank(value) {
				text = value
			}
		case "error":
			failed = !isBlank(value)
		}
	}
	first, done := kindTells(kind)
	switch {
	case choices != nil:
		s.choices = true
		first = first || choicesTell(choices)
	case kind == nil && meta:
		first = text != nil
	case kind == nil && something && !failed && !usage:
		first = true // unknown format
	}
	if first && !s.tokens {
		s.tokens, seen.FirstToken = true, true
	}
	seen.Done = seen.Done || done
	return noChoices && usage
}

func kindTells(kind []byte) (first, done bool) {
	switch string(kind) {
	case `"content_block_delta"`, `"message_delta"`:
		return true, false
	case `"message_stop"`, `"response.completed"`, `"response.incomplete"`:
		return true, true
	case `"response.failed"`:
		return false, true
	}
	return bytes.HasSuffix(kind, []byte(`.delta"`)), false
}

// choicesTell reports whether a choice has output or a finish reason.
func choicesTell(choices []byte) bool {
	for element := range elementsOf(choices) {
		for name, value := range membersOf(element) {
			switch string(name) {
			case "text", "finish_reason":
				if !isBlank(value) {
					return true
				}
			case "delta":
				for part, output := range membersOf(value) {
					if string(part) != "role" && !isBlank(output) {
						return true
					}
				}
			}
		}
	}
	return false
}

func isBlank(value []byte) bool {
	switch string(value) {
	case "null", `""`, "{}":
		return true
	}
	return isEmptyArray(value)
}

func isEmptyArray(value []byte) bool {
	return len(value) >= 2 && value[0] == '[' && value[skipSpace(value, 1)] == ']'
}

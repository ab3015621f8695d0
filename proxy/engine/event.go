package engine

import "bytes"

var (
	dataField = []byte("data:")
	doneData  = []byte("[DONE]")
)

// look reads one event and reports whether it carries only usage.
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

// dataOf returns the event's data, in s.data if it has several lines.
func (s *Stream) dataOf(event []byte) []byte {
	var data []byte
	for lines := 0; len(event) > 0; {
		line := event
		if n := bytes.IndexByte(event, '\n'); n >= 0 {
			line, event = event[:n], event[n+1:]
		} else {
			event = nil
		}
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		if !bytes.HasPrefix(line, dataField) {
			continue
		}
		line = line[len(dataField):]
		if len(line) > 0 && line[0] == ' ' {
			line = line[1:]
		}
		switch lines++; lines {
		case 1:
			data = line
		case 2:
			s.data = append(append(append(s.data[:0], data...), '\n'), line...)
			data = s.data
		default:
			s.data = append(append(s.data, '\n'), line...)
			data = s.data
		}
	}
	return data
}

// mayMatter reports whether an event after the first token can matter. The patterns begin with
// letters that are rarer than quotes, which makes the search faster.
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
	for m := membersOf(data); m.next(); {
		something = true
		switch string(m.key) {
		case "choices":
			choices = m.value
			noChoices = isEmptyArray(m.value)
		case "usage":
			if usage = m.value[0] == '{'; usage {
				s.counts.merge(m.value)
			}
		case "meta_info":
			if meta = m.value[0] == '{'; meta {
				s.counts.merge(m.value)
			}
		case "type":
			kind = m.value
		case "response", "message":
			for n := membersOf(m.value); n.next(); {
				if string(n.key) == "usage" {
					s.counts.merge(n.value)
				}
			}
		case "text", "output_ids":
			if !isBlank(m.value) {
				text = m.value
			}
		case "error":
			failed = !isBlank(m.value)
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
	case `"message_stop"`:
		return true, true
	case `"response.completed"`, `"response.incomplete"`:
		return true, true
	case `"response.failed"`:
		return false, true
	}
	return bytes.HasSuffix(kind, []byte(`.delta"`)), false
}

// choicesTell reports whether a choice has output or a finish reason.
func choicesTell(choices []byte) bool {
	for e := elementsOf(choices); e.next(); {
		for m := membersOf(e.value); m.next(); {
			switch string(m.key) {
			case "text", "finish_reason":
				if !isBlank(m.value) {
					return true
				}
			case "delta":
				for d := membersOf(m.value); d.next(); {
					if string(d.key) != "role" && !isBlank(d.value) {
						return true
					}
				}
			}
		}
	}
	return false
}

func isBlank(value []byte) bool {
	if isEmptyArray(value) {
		return true
	}
	switch string(value) {
	case "null", `""`, "{}":
		return true
	}
	return false
}

func isEmptyArray(value []byte) bool {
	if len(value) < 2 || value[0] != '[' {
		return false
	}
	return value[skipSpace(value, 1)] == ']'
}

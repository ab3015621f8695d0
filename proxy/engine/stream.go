package engine

import "bytes"

const (
	maxHold = 64 << 10 // bytes of a held-back event
	maxLook = 1 << 20  // bytes of a parsed event
)

// Seen is what Feed found.
type Seen struct {
	FirstToken bool // prefill is done; once per stream
	Done       bool // the answer is complete
}

// Stream reads a server-sent event stream as it passes. Call Reset first. With strip it removes the
// event that carries only usage. Not safe for concurrent use.
type Stream struct {
	strip   bool
	passing bool // too long to hold
	tokens  bool // FirstToken was reported
	choices bool // events are OpenAI chunks
	line    lineState
	counts  counts

	event []byte // the current event so far
	long  bool   // beyond maxLook
	out   []byte // scratch
	data  []byte // scratch
}

type lineState uint8

const (
	lineEmpty lineState = iota
	lineCR
	lineFull
)

// Reset prepares s for another stream.
func (s *Stream) Reset(strip bool) {
	event, out, data := s.event[:0], s.out[:0], s.data[:0]
	if cap(event)+cap(out)+cap(data) > 4*maxHold {
		event, out, data = nil, nil, nil
	}
	*s = Stream{strip: strip, counts: noCounts, event: event, out: out, data: data}
}

// Usage returns the counts seen so far.
func (s *Stream) Usage() Usage { return s.counts.usage() }

// Feed takes bytes, cut anywhere, and returns those to forward, valid until the next call.
func (s *Stream) Feed(p []byte) (out []byte, seen Seen) {
	s.out = s.out[:0]
	strip, copied := s.strip, false
	from, to, start := 0, 0, 0 // forward p[from:to]; the current event begins at p[start]
	for at := 0; at < len(p); {
		n := bytes.IndexByte(p[at:], '\n')
		if n < 0 {
			s.line = s.line.with(p[at:])
			break
		}
		blank := s.line.with(p[at:at+n]) != lineFull
		s.line = lineEmpty
		at += n + 1
		if !blank {
			continue
		}
		var held []byte
		if strip && !s.passing {
			held = s.event // what came of this event before p
		}
		drop := s.ended(p[start:at], &seen)
		switch {
		case drop:
			if from < to {
				s.out = append(s.out, p[from:to]...)
				copied = true
			}
			from = at
		case len(held) > 0:
			s.out = append(s.out, held...)
			copied = true
		}
		s.event, s.passing, s.long = s.event[:0], false, false
		start, to = at, at
	}
	rest := p[start:]
	if !strip {
		s.keep(rest)
		return p, seen
	}
	if s.passing || !s.strip {
		to = len(p)
	} else if len(s.event)+len(rest) > maxHold {
		s.passing = true
		if len(s.event) > 0 {
			s.out = append(s.out, p[from:to]...)
			s.out = append(s.out, s.event...)
			copied, from = true, start
		}
		to = len(p)
	}
	s.keep(rest)
	if !copied {
		return p[from:to], seen
	}
	s.out = append(s.out, p[from:to]...)
	return s.out, seen
}

func (l lineState) with(b []byte) lineState {
	switch {
	case len(b) == 0:
		return l
	case l == lineEmpty && len(b) == 1 && b[0] == '\r':
		return lineCR
	}
	return lineFull
}

func (s *Stream) keep(b []byte) {
	if s.long || len(s.event)+len(b) > maxLook {
		s.long = true
		s.event = s.event[:0]
		return
	}
	s.event = append(s.event, b...)
}

// ended reports whether to remove the event that ends with tail.
func (s *Stream) ended(tail []byte, seen *Seen) (drop bool) {
	if s.long || len(s.event)+len(tail) > maxLook {
		return false
	}
	event := tail
	if len(s.event) > 0 {
		s.event = append(s.event, tail...)
		event = s.event
	}
	usageOnly := s.look(event, seen)
	if usageOnly && s.strip && len(event) <= maxHold {
		s.strip = false // once
		return true
	}
	return false
}

// Flush ends the stream and returns held bytes, unless they are the event to remove.
func (s *Stream) Flush() []byte {
	event := s.event
	held := s.strip && !s.passing
	s.event, s.passing, s.long, s.line = s.event[:0], false, false, lineEmpty
	if len(event) == 0 {
		return nil
	}
	var seen Seen
	if usageOnly := s.look(event, &seen); usageOnly || !held {
		return nil
	}
	return event
}

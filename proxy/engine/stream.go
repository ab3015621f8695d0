package engine

import "bytes"

const (
	// maxHold is how much of an event that may have to be removed is held back, in bytes. The chunk in question
	// has a few hundred.
	maxHold = 64 << 10

	// maxLook is the longest event that is looked into. The last event of a Responses stream repeats the whole
	// answer; beyond this its usage stays unknown.
	maxLook = 1 << 20
)

// Seen is what a chunk brought.
type Seen struct {
	FirstToken bool // the first event that carries output: the prompt has been processed. Once per stream
	Done       bool // the engine says that the answer is complete
}

// Stream watches the bytes of a server-sent event stream go by. The zero value needs a Reset. One goroutine.
//
// With strip it removes the event that only brings the usage (no choices, usage given), once, with all its lines;
// for that an event that has not ended yet is held back, to 64 KiB. Events beyond are passed on and never removed.
// Nothing else is altered: in particular the "usage":null that engines put in the other chunks when asked for
// usage stays. Lines end with LF or CRLF.
type Stream struct {
	strip   bool
	passing bool // the current event has grown too long to be held
	tokens  bool // FirstToken was reported
	choices bool // the events are OpenAI's chunks
	line    lineState
	counts  counts

	event []byte // of the current event, what earlier chunks brought
	long  bool   // the current event is beyond maxLook and event is empty
	out   []byte // scratch for what Feed returns, if it is no part of its argument
	data  []byte // scratch for data of several lines
}

// lineState is what the current line has so far.
type lineState uint8

const (
	lineEmpty lineState = iota
	lineCR
	lineFull
)

// Reset makes s ready for another stream, keeping its memory if it is small.
func (s *Stream) Reset(strip bool) {
	event, out, data := s.event[:0], s.out[:0], s.data[:0]
	if cap(event)+cap(out)+cap(data) > 4*maxHold {
		event, out, data = nil, nil, nil
	}
	*s = Stream{strip: strip, counts: noCounts, event: event, out: out, data: data}
}

// Usage returns what is known so far.
func (s *Stream) Usage() (Usage, bool) { return s.counts.usage() }

// Feed takes the next bytes of the stream, however they are cut, and returns those to forward now: p itself or a
// part of it where possible, else the stream's own buffer, valid until the next call.
func (s *Stream) Feed(p []byte) (out []byte, seen Seen) {
	s.out = s.out[:0]
	strip, copied := s.strip, false
	from, to, start := 0, 0, 0 // p[from:to] is to be forwarded; the current event begins at p[start]
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
		held := strip && !s.passing && len(s.event) > 0
		drop := s.ended(p[start:at], &seen)
		switch {
		case drop:
			if from < to {
				s.out = append(s.out, p[from:to]...)
				copied = true
			}
			from = at
		case held:
			s.out = append(s.out, s.event...)
			copied, from = true, at // event includes p[start:at]
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

// with is the state after more bytes, none of them LF.
func (l lineState) with(b []byte) lineState {
	switch {
	case len(b) == 0:
		return l
	case l == lineEmpty && len(b) == 1 && b[0] == '\r':
		return lineCR
	}
	return lineFull
}

// keep remembers bytes of an event that has not ended.
func (s *Stream) keep(b []byte) {
	if s.long || len(s.event)+len(b) > maxLook {
		s.long = true
		s.event = s.event[:0]
		return
	}
	s.event = append(s.event, b...)
}

// ended looks at the event that ends with tail and says whether it is to be removed. Afterwards s.event holds the
// whole of it if it held some of it before.
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
		s.strip = false // once is enough, and nothing need be held any more
		return true
	}
	return false
}

// Flush ends the stream and returns the bytes that were still held back. An event that the end of the stream cuts
// short is forwarded like others, unless it is the one to remove.
func (s *Stream) Flush() []byte {
	event := s.event
	held := s.strip && !s.passing
	s.event, s.passing, s.long, s.line = s.event[:0], false, false, lineEmpty
	if len(event) == 0 {
		return nil
	}
	var seen Seen
	if s.look(event, &seen) && held || !held {
		return nil
	}
	return event
}

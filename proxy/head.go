package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/valyala/fasthttp"
)

// errMalformed says that the head of an engine's answer is no HTTP.
var errMalformed = errors.New("malformed response head")

// readHead reads the head of the final response into the client's, which gets the standard reason phrase in place of the
// engine's. fasthttp's parser is lenient, so the lines are checked before it sees them: what is not HTTP would be for
// each reader of the answer to interpret. Nothing is waited for that cannot come: a line that ends in a bare LF is refused.
func (e *exchange) readHead(up *upstreamConn) error {
	h := &e.ctx.Response.Header
	for range maxInterim {
		if err := awaitHead(up.br); err != nil {
			return err
		}
		if err := h.Read(up.br); err != nil {
			return err
		}
		switch status := h.StatusCode(); {
		case status == fasthttp.StatusSwitchingProtocols:
			return errMalformed
		case status >= 200:
			h.SetStatusMessage(nil)
			return nil
		case h.ContentLength() > 0 || h.ContentLength() == lengthChunked:
			return errMalformed // a body where there is none: what follows is not the next head
		}
	}
	return errMalformed
}

// awaitHead waits until a head has arrived whole, and checks its lines as they come. io.EOF: not a byte came.
func awaitHead(br *bufio.Reader) error {
	checked := 0 // bytes of whole lines
	for {
		view, _ := br.Peek(br.Buffered())
		for {
			end := bytes.IndexByte(view[checked:], '\n')
			if end < 0 {
				break
			}
			line := view[checked : checked+end+1]
			switch {
			case len(line) < 2 || line[end-1] != '\r':
				return errMalformed
			case checked == 0 && !isStatusLine(line[:end-1]):
				return errMalformed
			case len(line) == 2:
				return nil
			case checked > 0 && !isHeaderLine(line[:end-1]):
				return errMalformed
			}
			checked += end + 1
		}
		had := br.Buffered()
		if _, err := br.Peek(had + 1); err != nil && br.Buffered() == had {
			if had > 0 && err == io.EOF {
				return io.ErrUnexpectedEOF
			}
			return readError(err, had)
		}
	}
}

// readError is an error of reading a head of which so many bytes have come. Whatever ended a connection on which none came
// is io.EOF, but for a wait that was interrupted.
func readError(err error, had int) error {
	var late interface{ Timeout() bool }
	if had > 0 || errors.As(err, &late) && late.Timeout() {
		return err
	}
	return io.EOF
}

// isStatusLine says whether a line is HTTP/1.0 or HTTP/1.1 and a status of three digits from 100 to 599. The reason phrase
// is not looked at, since it is not passed on.
func isStatusLine(line []byte) bool {
	const protocol, status = len("HTTP/1.x "), len("HTTP/1.x 200")
	if len(line) < status || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return false
	}
	for i, c := range line[protocol:status] {
		if c < '0' || c > '9' || i == 0 && (c < '1' || c > '5') {
			return false
		}
	}
	return len(line) == status || line[status] == ' '
}

// isHeaderLine says whether a line is the name and the value of one header.
func isHeaderLine(line []byte) bool {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return false
	}
	for _, c := range line[:colon] {
		if !tokenBytes[c] {
			return false
		}
	}
	for _, c := range line[colon+1:] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokenBytes are the bytes of which names are made (RFC 9110, 5.6.2).
var tokenBytes = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c < 0x80 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()

// withoutBody makes the head of an answer that has no body say so: to a HEAD, or of a status that has none. It reports
// whether the connection can be used again: not if the engine announced a body all the same.
func (e *exchange) withoutBody() (bodiless, clean bool) {
	h := &e.ctx.Response.Header
	length := h.ContentLength()
	switch h.StatusCode() {
	case fasthttp.StatusNoContent, fasthttp.StatusResetContent:
		clean = length <= 0 && length != lengthChunked
		h.Del("Transfer-Encoding")
		h.Del("Content-Length")
		h.SetContentLength(0) // changes nothing of a 204, which has none
		return true, clean
	case fasthttp.StatusNotModified:
		clean = length != lengthChunked
		h.Del("Transfer-Encoding")
		return true, clean
	}
	return e.ctx.IsHead(), true
}

package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"

	"github.com/valyala/fasthttp"
)

var errMalformed = errors.New("malformed response head")

const maxInterim = 100

// readHead checks lines before fasthttp, which accepts what other readers interpret differently.
func readHead(br *bufio.Reader, h *fasthttp.ResponseHeader) error {
	for range maxInterim {
		if err := awaitHead(br); err != nil {
			return err
		}
		if err := h.Read(br); err != nil {
			return err
		}
		switch status := h.StatusCode(); {
		case status == fasthttp.StatusSwitchingProtocols:
			return errMalformed
		case status >= 200:
			h.SetStatusMessage(nil)
			return nil
		case h.ContentLength() > 0 || h.ContentLength() == lengthChunked:
			return errMalformed // a 1xx response has no body
		}
	}
	return errMalformed
}

// awaitHead returns io.EOF if no byte came.
func awaitHead(br *bufio.Reader) error {
	checked := 0 // bytes of complete lines
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
			var late net.Error
			switch {
			case had > 0 && err == io.EOF:
				return io.ErrUnexpectedEOF
			case had > 0 || errors.As(err, &late) && late.Timeout():
				return err
			}
			return io.EOF
		}
	}
}

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

// Bytes of header names (RFC 9110, 5.6.2).
var tokenBytes = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c < 0x80 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()

// clean is false if the engine announced a body, so that the connection is not reused.
func (e *exchange) withoutBody() (bodiless, clean bool) {
	h := &e.ctx.Response.Header
	length := h.ContentLength()
	switch h.StatusCode() {
	case fasthttp.StatusNoContent, fasthttp.StatusResetContent:
		clean = length <= 0 && length != lengthChunked
		h.Del("Transfer-Encoding")
		h.Del("Content-Length")
		h.SetContentLength(0)
		return true, clean
	case fasthttp.StatusNotModified:
		clean = length != lengthChunked
		h.Del("Transfer-Encoding")
		return true, clean
	}
	return e.ctx.IsHead(), true
}

func isEventStream(contentType []byte) bool {
	const sse = "text/event-stream"
	return len(contentType) >= len(sse) && bytes.EqualFold(contentType[:len(sse)], []byte(sse))
}

package proxy

import (
	"io"
	"time"

	"github.com/valyala/fasthttp"
)

// firstPiece is the size of the first buffer of a body of a given length, in bytes. A full buffer is
// doubled, so that a client has to send what it wants memory spent on: fasthttp by itself allocates
// what Content-Length announces, megabytes for a hundred bytes. The connection keeps a buffer up to
// retainBody, so that only its first large body pays for the growing.
const firstPiece = 64 << 10

// firstChunks is the same of a body of unknown length.
const firstChunks = 16 << 10

// prefetched is how much of a body of a given length fasthttp has read when it calls the handler.
const prefetched = 8 << 10

// refuseAnnounced keeps fasthttp from waiting for the beginning of a body that is too large, and from
// asking for it with 100 Continue; screen refuses it by the length it announced.
func (p *Proxy) refuseAnnounced(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if h.ContentLength() > p.cfg.MaxBody {
		h.SetContentLength(0)
		h.Del(fasthttp.HeaderExpect)
	}
	return none
}

// receive reads the body of a request into c.body, at most limit bytes. Errors are fasthttp's, the
// connection's, or errBodyMemory.
func (c *clientConn) receive(ctx *fasthttp.RequestCtx, limit int) error {
	c.body, c.arrived = c.body[:0], ctx.Time()
	stream := ctx.RequestBodyStream()
	length := ctx.Request.Header.ContentLength()
	if stream == nil || length == 0 {
		return nil
	}
	most, piece := length+1, firstPiece
	if length < 0 {
		most, piece = limit+1, firstChunks
	}
	for len(c.body) < most {
		if len(c.body) == cap(c.body) {
			if err := c.growBody(min(max(2*len(c.body), piece), most)); err != nil {
				return err
			}
		}
		n, err := stream.Read(c.body[len(c.body):min(cap(c.body), most)])
		c.body = c.body[:len(c.body)+n]
		switch {
		case err == nil:
		case err != io.EOF:
			return err
		case len(c.body) < length || length < 0 && c.ended: // fasthttp takes a connection that ends between two chunks for the end of the body
			return io.ErrUnexpectedEOF
		default:
			if length < 0 || length > prefetched {
				c.arrived = time.Now()
			}
			return nil
		}
	}
	return fasthttp.ErrBodyTooLarge // of a given length the last read says io.EOF
}

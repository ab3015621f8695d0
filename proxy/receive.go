package proxy

import (
	"io"
	"time"

	"github.com/valyala/fasthttp"
)

// firstPiece is the first buffer of a body of known length, in bytes. Full buffers double, so that
// clients must send data; fasthttp would allocate the announced length.
const firstPiece = 64 << 10

// firstChunks is used for unknown lengths.
const firstChunks = 16 << 10

// prefetched bytes are read by fasthttp before the handler.
const prefetched = 8 << 10

// refuseAnnounced keeps fasthttp from waiting for a body that is too large; serve refuses it.
func (p *Proxy) refuseAnnounced(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if h.ContentLength() > p.cfg.MaxBody {
		h.SetContentLength(0)
		h.Del(fasthttp.HeaderExpect)
	}
	return none
}

// receive reads the body, at most limit bytes, into c.body.
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
		// fasthttp reports a connection closed between two chunks as the end of the body.
		case len(c.body) < length || length < 0 && c.ended:
			return io.ErrUnexpectedEOF
		default:
			if length < 0 || length > prefetched {
				c.arrived = time.Now()
			}
			return nil
		}
	}
	return fasthttp.ErrBodyTooLarge // for a known length the last read returns io.EOF
}

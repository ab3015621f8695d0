package proxy

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// A malformed head fails the attempt at once and never reaches the client.
func TestMalformedAnswers(t *testing.T) {
	const end = "Content-Length: 2\r\n\r\nhi"
	for name, answer := range map[string]string{
		"status 000":               "HTTP/1.1 000 OK\r\n" + end,
		"status 099":               "HTTP/1.1 099 OK\r\n" + end,
		"status 999":               "HTTP/1.1 999 OK\r\n" + end,
		"status of two digits":     "HTTP/1.1 20 OK\r\n" + end,
		"status of four digits":    "HTTP/1.1 2000 OK\r\n" + end,
		"status with a sign":       "HTTP/1.1 +20 OK\r\n" + end,
		"no status":                "HTTP/1.1 OK\r\n" + end,
		"another protocol":         "HTTP/2.0 200 OK\r\n" + end,
		"space in a name":          "HTTP/1.1 200 OK\r\nX Y: z\r\n" + end,
		"space behind a name":      "HTTP/1.1 200 OK\r\nX-Y : z\r\n" + end,
		"control in a name":        "HTTP/1.1 200 OK\r\nX\x01Y: z\r\n" + end,
		"NUL in a value":           "HTTP/1.1 200 OK\r\nX: a\x00b\r\n" + end,
		"CR in a value":            "HTTP/1.1 200 OK\r\nX: a\rb\r\n" + end,
		"no name":                  "HTTP/1.1 200 OK\r\n: z\r\n" + end,
		"no colon":                 "HTTP/1.1 200 OK\r\nnonsense\r\n" + end,
		"folded":                   "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n" + end,
		"bare LF behind the first": "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
		"bare LF behind a header":  "HTTP/1.1 200 OK\r\nX: a\n" + end,
		"bare LF at the end":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\nhi",
		"bare LF, and no end":      "HTTP/1.1 200 OK\nX: y",
		"empty line in front":      "\r\nHTTP/1.1 200 OK\r\n" + end,
		"1xx with a body":          "HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n" + end,
		"endless head":             "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 90)+"\r\n", 200),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
				c.send(answer)
				_, _ = c.closedByPeer(20 * time.Second)
				return false
			})
			r := newRig(t, []string{b.addr})
			began := time.Now()
			rp := r.raw(chat(false)).want(t, 502, `"code":"upstream_broken"`)
			if rp.Header.Get("X") != "" || time.Since(began) > 15*time.Second {
				t.Errorf("%v, after %v", rp.Header, time.Since(began))
			}
		})
	}
}

func TestHeadsInPieces(t *testing.T) {
	whole := jsonReply(200, okBody, "X: y")
	for _, piece := range []int{1, 7, 64} {
		b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			for rest := whole; rest != ""; {
				n := min(piece, len(rest))
				if !c.send(rest[:n]) {
					return false
				}
				rest = rest[n:]
			}
			return true
		})
		r := newRig(t, []string{b.addr})
		for range 3 {
			if rp := r.raw(chat(false)).want(t, 200, okBody); rp.Header.Get("X") != "y" {
				t.Errorf("%v", rp.Header)
			}
		}
	}
}

// An engine's phrase may hold anything.
func TestReasonPhraseIsOurs(t *testing.T) {
	for _, reason := range []string{"OK", "", "Fine\x00", "\x1b[31mred", strings.Repeat("x", 1000)} {
		b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			return c.send("HTTP/1.1 404 " + reason + "\r\nContent-Length: 2\r\n\r\nno")
		})
		r := newRig(t, []string{b.addr})
		if rp := r.raw(chat(false)).want(t, 404, "no"); rp.Status != "404 Not Found" {
			t.Errorf("%q", rp.Status)
		}
	}
}

// The answer passes without its body, and its connection is not reused.
func TestBodiesWhereThereAreNone(t *testing.T) {
	for _, status := range []int{204, 205, 304} {
		for _, body := range []string{"Content-Length: 41\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n29\r\n"} {
			t.Run(fmt.Sprint(status, body[:8]), func(t *testing.T) {
				b := newBackend(t, false, func(c *upstreamSide, req seenRequest) bool {
					if c.begun > 1 || strings.Contains(req.body, "next") {
						return c.send(jsonReply(200, okBody))
					}
					return c.send(fmt.Sprintf("HTTP/1.1 %d X\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong\r\n0\r\n\r\n", status, body))
				})
				r := newRig(t, []string{b.addr})
				c := r.dial()
				br := bufio.NewReader(c)
				_, err := io.WriteString(c, chat(false))
				must(t, err)
				rp := readReply(t, br, "POST").want(t, status)
				if rp.body != "" || status != 304 && rp.ContentLength > 0 || rp.Header.Get("Transfer-Encoding") != "" {
					t.Errorf("%d bytes, %v", len(rp.body), rp.Header)
				}
				_, err = io.WriteString(c, chatOf("next", false))
				must(t, err)
				readReply(t, br, "POST").want(t, 200, okBody)
			})
		}
	}
}

// Bytes beyond Content-Length do not become the next answer.
func TestSurplusIsNobodysAnswer(t *testing.T) {
	const wrong = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
	for _, late := range []bool{false, true} {
		answered, surplus := make(chan bool, 8), make(chan bool, 8)
		b := newBackend(t, false, func(c *upstreamSide, _ seenRequest) bool {
			if c.begun > 1 {
				return c.send(jsonReply(200, okBody))
			}
			if !late {
				return c.send(jsonReply(200, okBody) + wrong)
			}
			ok := c.send(jsonReply(200, okBody))
			<-answered
			ok = c.send(wrong) && ok
			surplus <- true
			return ok
		})
		r := newRig(t, []string{b.addr})
		for range 5 {
			r.raw(chat(false)).want(t, 200, okBody)
			if late {
				answered <- true
				<-surplus
			}
		}
		if n := b.connections(); n != 5 {
			t.Errorf("late %v: %d connections for 5 requests", late, n)
		}
	}
}

package raftstore

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Requests and answers are frames; a connection carries one at a time:
//
//	what    1 byte: the kind of the request, or the status of the answer
//	length  4 bytes, big-endian
//	body    by kind
const (
	maxRequestBytes = MaxCommandBytes + 64
	maxAnswerBytes  = MaxSnapshotBytes + 64
)

// The bodies of apply, read and the answer to state are not JSON.
type requestKind uint8

const (
	askInfo     requestKind = iota + 1 // -> info
	askApply                           // budget in ms as uvarint, entry -> outcome
	askRead                            // budget in ms as uvarint -> version as uvarint
	askTransfer                        // transferRequest -> nothing
	_                                  // unused
	askJoin                            // joinRequest -> nothing
	askState                           // stateRequest -> snapshot, or nothing if there is no newer state
)

type answerStatus uint8

const (
	answerDone      answerStatus = iota // the body is the answer
	answerNotLeader                     // nothing was done; hint
	answerRefused                       // nothing was done, retrying is useless: text
	answerFailed                        // nothing was done, retrying may help: text
	answerUncertain                     // it may have been done: text
	answerBarred                        // nothing was done, there may be a rival group: text
)

type hint struct {
	ID   string `json:"id"`
	Addr string `json:"addr"`
}

func writeFrame(w io.Writer, what byte, body []byte) error {
	frame := make([]byte, 5, 5+len(body))
	frame[0] = what
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

func readFrame(r io.Reader, limit int) (what byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > uint32(limit) {
		return 0, nil, fmt.Errorf("frame of %d bytes, at most %d are allowed", n, limit)
	}
	body, err = readBody(r, int(n))
	return head[0], body, err
}

func readBody(r io.Reader, n int) ([]byte, error) {
	const step = 64 << 10
	body := make([]byte, 0, min(n, step))
	for len(body) < n {
		part := min(n-len(body), step)
		body = append(body, make([]byte, part)...)
		if _, err := io.ReadFull(r, body[len(body)-part:]); err != nil {
			return nil, err
		}
	}
	return body, nil
}

type answer struct {
	status answerStatus
	body   []byte
}

type caller struct {
	port *port

	mu   sync.Mutex
	idle map[string]*conn // by address; port closes them
}

const maxIdle = 256

// call sends a request once; sent is false if the other node cannot have seen it. ctx needs a
// deadline.
func (c *caller) call(ctx context.Context, addr string, kind requestKind, body []byte) (a answer, sent bool, err error) {
	conn, err := c.get(ctx, addr)
	if err != nil {
		return answer{}, false, err
	}
	deadline, _ := ctx.Deadline()
	conn.limit(deadline)
	stop := context.AfterFunc(ctx, conn.interrupt)
	defer stop()
	if err := writeFrame(conn, byte(kind), body); err != nil {
		conn.Close()
		return answer{}, true, fmt.Errorf("ask %s: %w", addr, err)
	}
	status, reply, err := readFrame(conn, maxAnswerBytes)
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return answer{}, true, fmt.Errorf("ask %s: %w", addr, err)
	}
	if stop() {
		conn.limit(time.Time{})
		c.put(addr, conn)
	} else {
		conn.Close()
	}
	return answer{answerStatus(status), reply}, true, nil
}

func (c *caller) get(ctx context.Context, addr string) (*conn, error) {
	c.mu.Lock()
	conn, found := c.idle[addr]
	delete(c.idle, addr)
	c.mu.Unlock()
	if found {
		if time.Since(conn.idle) < idleTimeout/2 && alive(conn) {
			return conn, nil
		}
		conn.Close()
	}
	return c.port.dial(ctx, addr, hello{Use: useRequests})
}

func alive(c *conn) bool {
	var b [1]byte
	c.limit(time.Now().Add(time.Millisecond))
	_, err := c.Conn.Read(b[:])
	c.limit(time.Time{})
	return os.IsTimeout(err)
}

func (c *caller) put(addr string, conn *conn) {
	c.mu.Lock()
	old, had := c.idle[addr]
	if had || len(c.idle) < maxIdle {
		conn.idle = time.Now()
		c.idle[addr], conn = conn, old
	}
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// ask sends in as JSON, unless it is nil, and returns the body of the answer.
func (c *caller) ask(ctx context.Context, addr string, kind requestKind, in any) (body []byte, err error) {
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	a, _, err := c.call(ctx, addr, kind, body)
	if err == nil && a.status != answerDone {
		err = fmt.Errorf("%s: %s", addr, a.body)
	}
	return a.body, err
}

package events

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Bounds of a connection. A publisher that stores a million tokens at once sends 5 MB.
const (
	maxMessage   = 16 << 20 // bytes of one message
	maxFrames    = 4
	maxCommand   = 1 << 10 // bytes
	keepMessage  = 1 << 20 // bytes of buffer kept after a long message
	readAhead    = 64 << 10
	readStep     = 256 << 10 // memory grows by what arrives, not by what a frame announces
	dialTimeout  = 2 * time.Second
	shakeTimeout = 3 * time.Second // greeting and handshake; also one write
)

// keepAlive notices within 6 s that the publisher's host is gone: an idle stream is silent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3}

var errProtocol = errors.New("against the protocol (ZMTP 3)")

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// Kinds of sockets.
const (
	socketSub    = "SUB"
	socketDealer = "DEALER"
)

// conn is the connecting end of a ZeroMQ connection: ZMTP 3.0 with mechanism NULL (rfc.zeromq.org/spec/23). One goroutine at a
// time.
type conn struct {
	net     *gatherer
	in      *bufio.Reader
	message []byte   // frames of the last message, one behind the other
	frames  [][]byte // parts of message
	release func() bool
}

// dial connects and shakes hands. The end of ctx closes the connection.
func dial(ctx context.Context, addr, socket string) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	g := &gatherer{Conn: nc}
	c := &conn{net: g, in: bufio.NewReaderSize(g, readAhead)}
	c.release = context.AfterFunc(ctx, func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(shakeTimeout))
	if err := c.shake(socket); err != nil {
		c.close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	_ = nc.SetDeadline(time.Time{})
	return c, nil
}

func (c *conn) close() {
	c.release()
	_ = c.net.Close()
}

const greetingSize = 64

func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f // signature
	g[10] = 3               // version 3.0
	copy(g[12:], "NULL")
	return g
}

func (c *conn) shake(socket string) error {
	if _, err := c.net.Write(greeting()); err != nil {
		return err
	}
	var peer [greetingSize]byte
	if _, err := io.ReadFull(c.in, peer[:]); err != nil {
		return fmt.Errorf("no ZeroMQ greeting: %w", err)
	}
	if peer[0] != 0xff || peer[9]&1 == 0 || peer[10] < 3 {
		return fmt.Errorf("%w: no greeting of version 3: is this the port of the engine's events?", errProtocol)
	}
	if mechanism := bytes.TrimRight(peer[12:32], "\x00"); string(mechanism) != "NULL" {
		return fmt.Errorf("%w: the publisher wants security mechanism %q; only NULL is supported", errProtocol, mechanism)
	}
	if err := c.write(flagCommand, ready(socket)); err != nil {
		return err
	}
	_, body, err := c.frame(nil, maxCommand)
	if err != nil {
		return fmt.Errorf("no READY: %w", err)
	}
	name, properties := command(body)
	if name != "READY" {
		return fmt.Errorf("%w: the publisher answers %q to READY", errProtocol, body)
	}
	want, either := "PUB", "XPUB"
	if socket == socketDealer {
		want, either = "ROUTER", "REP"
	}
	if got := property(properties, "Socket-Type"); got != want && got != either {
		return fmt.Errorf("%w: a %q socket, want %s: endpoint and replay endpoint may be exchanged", errProtocol, got, want)
	}
	return nil
}

func ready(socket string) []byte {
	b := append([]byte{5}, "READY"...)
	for _, p := range [...][2]string{{"Socket-Type", socket}, {"Identity", ""}} {
		b = append(append(b, byte(len(p[0]))), p[0]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p[1]))), p[1]...)
	}
	return b
}

// command splits a command into its name and the rest; the name is "" if there is none.
func command(b []byte) (name string, rest []byte) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil
	}
	return string(b[1 : 1+b[0]]), b[1+b[0]:]
}

// property finds a value among the properties of READY; "" if there is none. Names differ in case between peers.
func property(b []byte, name string) string {
	for {
		key, rest := command(b)
		if key == "" || len(rest) < 4 {
			return ""
		}
		n := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(n) > uint64(len(rest)) {
			return ""
		}
		if bytes.EqualFold([]byte(key), []byte(name)) {
			return string(rest[:n])
		}
		b = rest[n:]
	}
}

// write sends one frame.
func (c *conn) write(flags byte, body []byte) error {
	b := make([]byte, 0, 9+len(body))
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	_ = c.net.SetWriteDeadline(time.Now().Add(shakeTimeout))
	_, err := c.net.Write(append(b, body...))
	return err
}

// subscribe asks for the messages whose topic begins so.
func (c *conn) subscribe(topic string) error {
	return c.write(0, append([]byte{1}, topic...))
}

// receive waits for the next message and returns its frames, valid until the next call.
func (c *conn) receive() ([][]byte, error) {
	if cap(c.message) > keepMessage {
		c.message = nil
	}
	c.message, c.frames = c.message[:0], c.frames[:0]
	var ends [maxFrames]int
	n := 0
	for more := true; more; {
		flags, body, err := c.frame(c.message, maxMessage-len(c.message))
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.obey(body[len(c.message):]); err != nil {
				return nil, err
			}
			continue
		}
		if n == maxFrames {
			return nil, fmt.Errorf("%w: a message of more than %d frames", errProtocol, maxFrames)
		}
		c.message = body
		ends[n] = len(body)
		n++
		more = flags&flagMore != 0
	}
	from := 0
	for _, end := range ends[:n] {
		c.frames = append(c.frames, c.message[from:end:end])
		from = end
	}
	return c.frames, nil
}

// obey answers a ping and ignores other commands.
func (c *conn) obey(body []byte) error {
	name, rest := command(body)
	if name != "PING" {
		return nil
	}
	context := rest[min(2, len(rest)):] // behind the time to live
	return c.write(flagCommand, append(append([]byte{4}, "PONG"...), context[:min(16, len(context))]...))
}

// frame appends the body of the next frame, of at most limit bytes, to dst.
func (c *conn) frame(dst []byte, limit int) (flags byte, body []byte, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("%w: frame flags %#x", errProtocol, flags)
	}
	width := 1
	if flags&flagLong != 0 {
		width = 8
	}
	var head [8]byte
	if _, err = io.ReadFull(c.in, head[8-width:]); err != nil {
		return 0, nil, err
	}
	if flags&flagCommand != 0 {
		limit = min(limit, maxCommand)
	}
	size := binary.BigEndian.Uint64(head[:])
	if size > uint64(limit) {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes, at most %d are accepted", errProtocol, size, limit)
	}
	for left := int(size); left > 0; {
		step := min(left, readStep)
		at := len(dst)
		dst = slices.Grow(dst, step)[:at+step]
		if _, err = io.ReadFull(c.in, dst[at:]); err != nil {
			return 0, nil, err
		}
		left -= step
	}
	return flags, dst, nil
}

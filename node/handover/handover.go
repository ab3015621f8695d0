// Package handover replaces a router's process by another one that serves on the same sockets: the
// messages between the two, and the start of the new one. It knows nothing of what they hand over.
//
// The old process starts the new one with its listening sockets, and both speak over a pair of
// sockets, which no other process can open:
//
//	old                                    new
//	hello (sockets, secret)           ->   reads its configuration, builds its node
//	                                  <-   built, or failed with the reason
//	pages of knowledge, end of pages  ->
//	stops what one process may own         waits
//	released, usage                   ->   starts
//	                                  <-   serving, or failed
//	tells the service manager
//	yours                             ->   reports to the service manager
//	drains, pages of usage            <->  serves, pages of usage; each counts the other's
//	exits                                  sees the end of the connection
//
// Until "yours" the old process can take everything back.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Version of the messages. Releases that are neighbours understand each other, or the replacement is
// refused and the old process goes on.
const Version = 1

// Hello comes first.
type Hello struct {
	Version int      `json:"version"`
	Sockets []Socket `json:"sockets"` // in the order of their descriptors
	// Secret is the random one of a router without a configured one; the new router uses it likewise.
	Secret []byte `json:"secret,omitempty"`
}

// Socket describes a socket that listens.
type Socket struct {
	Setting string `json:"setting"` // the key of its address
	Address string `json:"address"` // that setting's value; "": the service manager opened it
}

// Page is a part of what the old router knows, as the routers of a fleet exchange it.
type Page struct {
	KeyID      uint32 `json:"key_id"` // of the prompt hash; pages under another one are useless
	BlockBytes int    `json:"block_bytes"`
	State      bool   `json:"state,omitempty"` // a state blob, else a page of a snapshot
	Usage      bool   `json:"usage,omitempty"` // what its requests use, of clients' limits and of engines
	Data       []byte `json:"data"`
}

type step string

const (
	hello    step = "hello"
	built    step = "built"
	page     step = "page"
	pagesEnd step = "pages_end"
	released step = "released"
	serving  step = "serving"
	yours    step = "yours"
	failed   step = "failed"
)

type message struct {
	Step  step   `json:"step"`
	Hello *Hello `json:"hello,omitempty"`
	Page  *Page  `json:"page,omitempty"`
	Text  string `json:"text,omitempty"` // the new program's version; the reason of a failure
}

// ErrEnded: the other process ended, or gave up without a reason.
var ErrEnded = errors.New("the other process ended")

// conn is one side. One goroutine at a time may send, and another one receive.
type conn struct {
	net.Conn
	in  *json.Decoder
	out *json.Encoder
}

func newConn(c net.Conn) conn { return conn{c, json.NewDecoder(c), json.NewEncoder(c)} }

// within bounds do by ctx, by the deadline of reads or of writes.
func within(ctx context.Context, deadline func(time.Time) error, do func() error) error {
	if err := deadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = deadline(time.Unix(1, 0)) })
	defer stop()
	err := do()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c conn) send(ctx context.Context, m message) error {
	return within(ctx, c.SetWriteDeadline, func() error {
		if err := c.out.Encode(m); err != nil {
			return fmt.Errorf("%w: %w", ErrEnded, err)
		}
		return nil
	})
}

// take gives pages to f until the other process ends or says something else, or ctx ends.
func (c conn) take(ctx context.Context, f func(*Page)) {
	for {
		m, err := c.receive(ctx, page)
		if err != nil {
			return
		}
		if m.Page != nil {
			f(m.Page)
		}
	}
}

// receive returns the next message, which must be of one of the steps.
func (c conn) receive(ctx context.Context, want ...step) (m message, err error) {
	err = within(ctx, c.SetReadDeadline, func() error {
		if err := c.in.Decode(&m); err != nil {
			return fmt.Errorf("%w: %w", ErrEnded, err)
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	if m.Step == failed {
		return m, errors.New(m.Text)
	}
	for _, s := range want {
		if m.Step == s {
			return m, nil
		}
	}
	return m, fmt.Errorf("message %q, want %q: the two releases do not understand each other", m.Step, want)
}

// ended waits until the other process closes the connection, or ctx ends.
func (c conn) ended(ctx context.Context) {
	_ = within(ctx, c.SetReadDeadline, func() error {
		_, err := io.Copy(io.Discard, c.Conn)
		return err
	})
}

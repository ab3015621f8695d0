package raftstore

import (
	"context"
	"net"
	"testing"
	"time"
)

// A call without time left sends no request, because the outcome would be unknown.
func TestNoAttemptWithoutTime(t *testing.T) {
	near, far := net.Pipe() // without a reader
	defer near.Close()
	defer far.Close()
	p := &port{conns: make(map[*conn]struct{})}
	const addr = "127.0.0.1:7"
	s := &Store{port: p, caller: &caller{port: p, idle: map[string]idleConn{
		addr: {conn: &conn{Conn: near, port: p}, since: time.Now()},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), leastAttempt/2)
	defer cancel()
	_, sent, err := s.attempt(ctx, &hint{ID: "other", Addr: addr}, askApply, []byte("command"))
	if sent || err == nil {
		t.Errorf("sent: %v, %v", sent, err)
	}
}

package member

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// handshake lets two nodes meet on a port of its own protocol, and moves a byte
// each way: a TLS 1.3 client learns only then that it was turned away.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			served <- err
			return
		}
		defer closeGently(raw) // the client is to read why
		_ = raw.SetDeadline(time.Now().Add(patience))
		c := tls.Server(raw, server)
		if _, err = io.ReadFull(c, make([]byte, 1)); err == nil {
			_, err = c.Write([]byte{2})
		}
		served <- err
	}()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, client)
	if _, err = c.Write([]byte{1}); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	_ = raw.Close()
	return errors.Join(err, <-served)
}

// streamTLS is that of a node, for the protocol of these tests.
func streamTLS(l *List) *tls.Config {
	return StreamTLS(func() *List { return l }, "test/1")
}

// TestStreamTLS: a protocol of its own is spoken among nodes that have the
// fleet's key, throughout a rotation, and with nobody else.
func TestStreamTLS(t *testing.T) {
	nodes := fleet(t, 2, patient)
	one, two := streamTLS(nodes[0].List), streamTLS(nodes[1].List)
	both := func(when string) {
		t.Helper()
		if err := errors.Join(handshake(t, one, two), handshake(t, two, one)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	both("before")
	cfg := testConfig("stranger")
	cfg.Keys = [][]byte{key(9)}
	stranger, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	outside := streamTLS(stranger)
	for what, pair := range map[string][2]*tls.Config{
		"a stranger that dials":    {outside, one},
		"a stranger that listens":  {one, outside},
		"no certificate":           {&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test/1"}}, one},
		"another protocol":         {StreamTLS(func() *List { return nodes[1].List }, "test/2"), one},
		"a node without a list":    {StreamTLS(func() *List { return nil }, "test/1"), one},
		"a node that is not there": {one, StreamTLS(func() *List { return nil }, "test/1")},
	} {
		if handshake(t, pair[0], pair[1]) == nil {
			t.Errorf("%s is let in", what)
		}
	}
	old := FingerprintOf(key(1))
	rotate(t, nodes[0], KeyInstall, key(2), 2)
	both("after install")
	rotate(t, nodes[0], KeyUse, key(2), 2)
	both("after use")
	rotate(t, nodes[0], KeyRemove, old[:], 2)
	both("after removal")
	late, err := New(testConfig("late")) // has the key that was removed
	if err != nil {
		t.Fatal(err)
	}
	if handshake(t, streamTLS(late), one) == nil {
		t.Error("the removed key still admits")
	}
}

// TestStreamTLSOfTheOperator: a certificate of the operator's authority admits
// who is a member, and no other service that has one.
func TestStreamTLSOfTheOperator(t *testing.T) {
	authority := newTestAuthority(t)
	nodes := fleet(t, 2, func(i int, cfg *Config) {
		patient(i, cfg)
		cfg.TLS = authority.config(t, cfg.Self.Name, authority)
	})
	one, two := streamTLS(nodes[0].List), streamTLS(nodes[1].List)
	if err := errors.Join(handshake(t, one, two), handshake(t, two, one)); err != nil {
		t.Error(err)
	}
	other := authority.config(t, "database", authority)
	other.NextProtos, other.InsecureSkipVerify = []string{"test/1"}, true
	if err := handshake(t, other, one); err == nil || !strings.Contains(err.Error(), "none of a member's") {
		t.Errorf("another service of the operator: %v", err)
	}
}

package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"grapevine.example/gossip/member"
)

func TestIsRefusal(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("no such host"), false},
		{context.DeadlineExceeded, false},
		{io.EOF, false},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{fmt.Errorf("a: %w", &net.OpError{Op: "remote error", Err: errors.New("tls: unknown certificate authority")}), true},
		{fmt.Errorf("a: %w", &member.MismatchError{Field: member.FieldSecret}), true},
		{fmt.Errorf("a: %w: it says why", member.ErrRefused), true},
		{fmt.Errorf("a: %w", x509.UnknownAuthorityError{}), true},
		{fmt.Errorf("a: %w", x509.CertificateInvalidError{Reason: x509.Expired}), true},
	} {
		if got := isRefusal(tc.err); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
		}
	}
	if !nameTaken(fmt.Errorf("a: %w", &member.MismatchError{Field: member.FieldName})) || nameTaken(&member.MismatchError{Field: member.FieldSecret}) {
		t.Error("a taken name is not told from another difference")
	}
}

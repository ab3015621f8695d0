package proxy

import (
	"net"
	"syscall"
	"testing"

	"github.com/valyala/fasthttp"

	"grapevine.example/prefixtree"
)

const errTooMany = syscall.EMFILE

type failingListener struct {
	errs   []error
	closed bool
}

func (l *failingListener) Accept() (net.Conn, error) {
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func (l *failingListener) Close() error { l.closed = true; return nil }

func (l *failingListener) Addr() net.Addr { return &net.TCPAddr{} }

func newContext(method, target string) *fasthttp.RequestCtx {
	ctx := new(fasthttp.RequestCtx)
	ctx.Request.Header.SetMethod(method)
	ctx.Request.Header.SetRequestURI(target)
	return ctx
}

func mustHasher(t testing.TB) *prefixtree.Hasher {
	t.Helper()
	h, err := prefixtree.NewHasher([]byte("secret"), prefixtree.DefaultBlockBytes)
	must(t, err)
	return h
}

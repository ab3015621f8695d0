//go:build linux

package main

import (
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// serveBare is the minimal proxy on grapevine's HTTP library: it reads a request whole, sends it to
// the next backend, and returns the answer, without parsing, metrics or streaming. grapevine's cost
// beyond it is grapevine's own; its cost beyond nginx is that of the library and the runtime.
func serveBare(args []string) error {
	addr, backends := args[0], args[1:]
	hosts := make([]*fasthttp.HostClient, len(backends))
	for i, b := range backends {
		hosts[i] = &fasthttp.HostClient{Addr: b, MaxConns: 4096, MaxIdleConnDuration: time.Minute, ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
			DisablePathNormalizing: true, DisableHeaderNamesNormalizing: true, NoDefaultUserAgentHeader: true}
	}
	var turn atomic.Uint32
	server := fasthttp.Server{
		ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10, MaxRequestBodySize: 64 << 20,
		DisableHeaderNamesNormalizing: true, NoDefaultServerHeader: true, NoDefaultDate: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			if err := hosts[turn.Add(1)%uint32(len(hosts))].Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), fasthttp.StatusBadGateway)
			}
		},
	}
	return server.ListenAndServe(addr)
}

//go:build linux

package main

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// serveBare is the minimal proxy on grapevine's HTTP library: it reads a request whole, sends it to
// the next backend, and returns the answer, without parsing, metrics or streaming. grapevine's cost
// beyond it is grapevine's own; its cost beyond nginx is that of the library and the runtime.
func serveBare(addr string, backends []string) error {
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

// startBare runs serveBare as a process. It has no streamAddr, because it cannot stream.
func startBare(self string, backends []string) (*contender, error) {
	addrs, err := freeAddrs(1)
	if err != nil {
		return nil, err
	}
	argv := append([]string{self, "bare", addrs[0]}, backends...)
	p, err := startProcess("bare", argv...)
	if err != nil {
		return nil, err
	}
	return &contender{Name: "bare", Version: "what grapevine's HTTP library costs alone", Config: strings.Join(argv, " "), addr: addrs[0], proc: p}, nil
}

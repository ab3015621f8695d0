package scenario

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"grapevine/chaos/fleet"
)

func (w *world) strangers(ctx context.Context, n *fleet.Node, rate float64) (undo, error) {
	st, err := n.Raft(ctx)
	if err != nil {
		return nil, fmt.Errorf("raft address of %s: %w", n.Name(), err)
	}
	ports := []string{n.GossipAddr(), st.Addr, n.Addr(), n.AdminAddr()}
	rng := rand.New(rand.NewPCG(w.t.seed, 0x57a6))
	return during(ctx, func(ctx context.Context) {
		var work sync.WaitGroup
		defer work.Wait()
		for sleep(ctx, time.Duration(rng.ExpFloat64()/rate*float64(time.Second))) == nil {
			said, port, datagram := nonsense(rng), ports[rng.IntN(len(ports))], rng.IntN(4) == 0
			work.Go(func() { babble(ctx, n, port, said, datagram) })
		}
	}), nil
}

func babble(ctx context.Context, n *fleet.Node, port string, said []byte, datagram bool) {
	network := "tcp"
	if datagram {
		network, port = "udp", n.GossipAddr()
		said = said[:min(len(said), 1200)]
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, network, port)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // an open connection supports deadlines
	if _, err := c.Write(said); err != nil || datagram {
		return
	}
	_, _ = io.CopyN(io.Discard, c, 4096)
}

func nonsense(rng *rand.Rand) []byte {
	random := make([]byte, 1+rng.IntN(2000))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	switch rng.IntN(6) {
	case 0:
		return append([]byte{0x16, 3, 1, byte(rng.Uint32()), byte(rng.Uint32())}, random...)
	case 1:
		return append(binary.BigEndian.AppendUint32(nil, 0xfffffff0), random...)
	case 2:
		return []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	case 3:
		return append([]byte("GET /\x00"), random...)
	case 4:
		random[0] = byte(rng.IntN(16))
	}
	return random
}

package fleet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"grapevine.example/chaos/fleet"
)

const (
	// patience bounds what must happen.
	patience = 20 * time.Second
	// enough is how long a test waits for what must not happen: a thousand times the usual.
	enough = 300 * time.Millisecond
)

const testPort = "19000"

func need(t *testing.T, faults ...string) {
	t.Helper()
	for _, fault := range faults {
		if err := fleet.Supports(fault, ""); err != nil {
			t.Skip(err)
		}
	}
}

func switched(t *testing.T) (f *fleet.Fleet, a, b *fleet.Node) {
	t.Helper()
	f = start(t, fleet.Config{Nodes: 2, Engines: 1, Alone: true, Switched: true, Seed: 7, Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	return f, f.Node("node-0"), f.Node("node-1")
}

func setLink(t *testing.T, f *fleet.Fleet, from, to string, l fleet.Link) {
	t.Helper()
	if err := f.SetLink(from, to, l); err != nil {
		t.Fatal(err)
	}
}

func within[T any](t *testing.T, n *fleet.Node, f func() (T, error)) (v T) {
	t.Helper()
	err := n.InNetwork(func() (err error) {
		v, err = f()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func hostOf(t *testing.T, n *fleet.Node) string {
	t.Helper()
	host, _, err := net.SplitHostPort(n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, testPort)
}

func connect(t *testing.T, a, b *fleet.Node) (from, to net.Conn) {
	t.Helper()
	ln := within(t, b, func() (net.Listener, error) { return net.Listen("tcp", hostOf(t, b)) })
	defer func() { _ = ln.Close() }()
	from = within(t, a, func() (net.Conn, error) { return net.DialTimeout("tcp", ln.Addr().String(), patience) })
	to, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{from, to} {
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
			t.Fatal(err)
		}
	}
	return from, to
}

func roundTrip(t *testing.T, from, to net.Conn) time.Duration {
	t.Helper()
	began := time.Now()
	for _, way := range [2][2]net.Conn{{from, to}, {to, from}} {
		if _, err := way[0].Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(began)
}

// datagrams sends count numbered datagrams from a to b and returns those that arrived. It waits until at least so many have.
func datagrams(t *testing.T, a, b *fleet.Node, count, least int) (arrived []int) {
	t.Helper()
	in := within(t, b, func() (net.PacketConn, error) { return net.ListenPacket("udp4", hostOf(t, b)) })
	defer func() { _ = in.Close() }()
	_ = in.(*net.UDPConn).SetReadBuffer(4 << 20) // the kernel may grant less, which still suffices
	out := within(t, a, func() (net.Conn, error) { return net.Dial("udp4", hostOf(t, b)) })
	defer func() { _ = out.Close() }()
	ended, stop := make(chan struct{}), context.WithoutCancel(t.Context())
	stop, cancel := context.WithTimeout(stop, patience)
	defer cancel()
	const last = 1 << 30
	send := func(i int) {
		if _, err := out.Write(strconv.AppendInt(nil, int64(i), 10)); err != nil {
			t.Error(err)
		}
	}
	go func() {
		defer close(ended)
		for i := range count {
			send(i)
		}
		// Links delay reordered packets by 10 ms.
		for tick := time.NewTicker(50 * time.Millisecond); stop.Err() == nil; {
			select {
			case <-stop.Done():
			case <-tick.C:
				send(last)
			}
		}
	}()
	buf := make([]byte, 64)
	for _ = in.SetReadDeadline(time.Now().Add(patience)); ; {
		n, _, err := in.ReadFrom(buf)
		if err != nil {
			t.Fatalf("after %d: %v", len(arrived), err)
		}
		i, err := strconv.Atoi(string(buf[:n]))
		if err != nil {
			t.Fatal(err)
		}
		if i == last && len(arrived) < least {
			continue // a link holds some back
		}
		if i == last {
			cancel()
			<-ended
			return arrived
		}
		arrived = append(arrived, i)
	}
}

func queueOf() (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(s) }()
	req, err := unix.NewIfreq("eth0")
	if err == nil {
		err = unix.IoctlIfreq(s, unix.SIOCGIFTXQLEN, req)
	}
	if err != nil {
		return 0, err
	}
	return int(req.Uint32()), nil
}

func TestLinks(t *testing.T) {
	need(t, fleet.FaultLinks)
	if !isolated(t, false) {
		return
	}
	f, a, b := switched(t)
	const count = 200

	t.Run("nothing", func(t *testing.T) {
		if got := datagrams(t, a, b, count, count); len(got) != count {
			t.Errorf("%d of %d datagrams arrived over a whole link", len(got), count)
		}
		if n := within(t, a, queueOf); n < 10_000 {
			t.Errorf("%d packets can wait for the switch", n)
		}
	})
	t.Run("delay", func(t *testing.T) {
		from, to := connect(t, a, b)
		setLink(t, f, "node-0", "node-1", fleet.Link{Delay: 150 * time.Millisecond, Jitter: 20 * time.Millisecond})
		if d := roundTrip(t, from, to); d < 150*time.Millisecond || d > patience {
			t.Errorf("one way of 150 ms: round trip %v", d)
		}
		setLink(t, f, "node-1", "node-0", fleet.Link{Delay: 150 * time.Millisecond})
		if d := roundTrip(t, from, to); d < 300*time.Millisecond || d > patience {
			t.Errorf("both ways of 150 ms: round trip %v", d)
		}
		heal(t, f)
	})
	t.Run("loss", func(t *testing.T) {
		setLink(t, f, "node-0", "node-1", fleet.Link{Loss: 0.3})
		if got := len(datagrams(t, a, b, count, 0)); got < count/2 || got > count*9/10 {
			t.Errorf("%d of %d datagrams arrived where 30 %% are lost", got, count)
		}
		if got := len(datagrams(t, b, a, count, count)); got != count {
			t.Errorf("%d of %d datagrams arrived in the other direction", got, count)
		}
		heal(t, f)
	})
	t.Run("duplicate", func(t *testing.T) {
		setLink(t, f, "node-0", fleet.Everybody, fleet.Link{Duplicate: 0.5})
		if got := len(datagrams(t, a, b, count, 0)); got < count*5/4 || got > count*7/4 {
			t.Errorf("%d of %d datagrams arrived where half are doubled", got, count)
		}
		heal(t, f)
	})
	t.Run("reorder", func(t *testing.T) {
		setLink(t, f, fleet.Everybody, "node-1", fleet.Link{Reorder: 0.2})
		got, late, most := datagrams(t, a, b, count, count), 0, -1
		for _, i := range got {
			if i < most {
				late++
			}
			most = max(most, i)
		}
		if len(got) != count || late == 0 {
			t.Errorf("%d of %d datagrams arrived, %d late, where a fifth are held back", len(got), count, late)
		}
		heal(t, f)
	})
	t.Run("rate", func(t *testing.T) {
		from, to := connect(t, a, b)
		const size, rate = 1 << 20, 2 << 20
		setLink(t, f, "node-0", "node-1", fleet.Link{Rate: rate})
		began := time.Now()
		go func() { _, _ = from.Write(make([]byte, size)) }()
		if _, err := io.ReadFull(to, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < time.Second*size/rate {
			t.Errorf("%d bytes in %v, at %d bytes/s", size, d, rate)
		}
		heal(t, f)
	})
	for _, wrong := range []fleet.Link{{Loss: 1.5}, {Duplicate: -1}, {Delay: -1}, {Rate: -1}} {
		if f.SetLink("node-0", "node-1", wrong) == nil {
			t.Errorf("taken: %+v", wrong)
		}
	}
	if f.SetLink("node-0", "missing", fleet.Link{}) == nil || f.SetLink("harness", "node-0", fleet.Link{}) == nil {
		t.Error("a link to no member, or to the harness, was broken")
	}
	served(t, f)
}

func heal(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
}

func TestOneWay(t *testing.T) {
	need(t, fleet.FaultLinks)
	if !isolated(t, false) {
		return
	}
	f, a, b := switched(t)
	from, to := connect(t, a, b)
	setLink(t, f, "node-0", "node-1", fleet.Link{Loss: 1})
	if _, err := to.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(from, make([]byte, 1)); err != nil {
		t.Errorf("from node-1 to node-0: %v", err)
	}
	if _, err := from.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	_ = to.SetReadDeadline(time.Now().Add(enough))
	if _, err := to.Read(make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Errorf("from node-0 to node-1: %v", err)
	}
	heal(t, f)
	_ = to.SetReadDeadline(time.Now().Add(2 * patience))
	if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
		t.Errorf("after healing: %v", err)
	}
	if err := f.Partition([]string{"node-0"}, []string{"node-1"}); err != nil {
		t.Fatal(err)
	}
	if reach(t, a, b, enough) || reach(t, b, a, enough) {
		t.Error("node-0 and node-1 reach each other while they are cut off")
	}
	served(t, f)
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	if !reach(t, a, b, patience) || !reach(t, b, a, patience) {
		t.Error("node-0 and node-1 do not reach each other after healing")
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestReset(t *testing.T) {
	need(t, fleet.FaultLinks)
	if !isolated(t, false) {
		return
	}
	f, a, b := switched(t)
	ends, writers := map[string]net.Conn{}, map[string]chan error{}
	ends["from new"], ends["to new"] = connect(t, a, b)
	from, to := connect(t, a, b)
	roundTrip(t, from, to)
	ends["from idle"], ends["to idle"] = from, to
	busyFrom, busyTo := connect(t, a, b)
	ends["from busy"], ends["to busy"] = busyFrom, busyTo
	for _, what := range []string{"from busy", "to busy"} {
		ended := make(chan error, 1)
		writers[what] = ended
		go func() {
			for {
				if _, err := ends[what].Write(make([]byte, 1000)); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	// Node-0's own connections to the engine must stay.
	other, err := net.DialTimeout("tcp", b.AdminAddr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := f.ResetLink("node-1", "node-0"); err != nil {
		t.Fatal(err)
	}
	for what, c := range ends {
		_, err := io.Copy(io.Discard, c)
		if ended := writers[what]; ended != nil {
			err = errors.Join(err, <-ended) // the kernel reports the reset at one of them only; the other sees an end
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the end %s: %v, want a reset", what, err)
		}
	}
	if _, err := other.Write([]byte("GET /healthz HTTP/1.0\r\n\r\n")); err != nil {
		t.Error(err)
	}
	_ = other.SetDeadline(time.Now().Add(patience))
	if text, err := io.ReadAll(other); err != nil || len(text) == 0 {
		t.Errorf("a connection from elsewhere: %q, %v", text, err)
	}
	from, to = connect(t, a, b)
	roundTrip(t, from, to)
	served(t, f)
}

func waitWithoutThreads(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	const count = 400
	list := func(dir string) int {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var dials sync.WaitGroup
	for range count {
		dials.Go(func() {
			if c, err := f.DialClient(ctx, "tcp", strings.TrimPrefix(f.URL(), "http://")); err == nil {
				_ = c.Close()
				t.Error("connected over a link that loses everything")
			}
		})
	}
	for list("/proc/self/fd") < count && ctx.Err() == nil {
		_ = sleep(ctx, 5*time.Millisecond) // the loop checks ctx
	}
	if ctx.Err() != nil {
		t.Errorf("%d descriptors with %d connections to wait for", list("/proc/self/fd"), count)
	}
	if n := list("/proc/self/task"); n > count/2 {
		t.Errorf("%d connections take %d threads", count, n)
	}
	cancel()
	dials.Wait()
}

func TestPlaces(t *testing.T) {
	need(t, fleet.FaultLinks)
	if !isolated(t, false) {
		return
	}
	f := start(t, fleet.Config{Nodes: 3, Engines: 2, Switched: true, Balancer: fleet.BalancerConfig{Interval: 50 * time.Millisecond, Timeout: 2 * time.Second},
		Settings: map[string]any{"drain_grace": "0s", "drain_close": "0s"}})
	served(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	setLink(t, f, fleet.ClientsName, fleet.BalancerName, fleet.Link{Loss: 1})
	short, stop := context.WithTimeout(ctx, enough)
	if who, err := chatFrom(short, f.DialClient, f.URL()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a link from clients to balancer: %q, %v", who, err)
	}
	stop()
	waitWithoutThreads(t, f)
	setLink(t, f, fleet.BalancerName, "node-0", fleet.Link{Loss: 1})
	if err := f.WaitHealthy(ctx, "node-0", false); err != nil {
		t.Fatal(err)
	}
	if f.Node("node-0").Ready(ctx) != nil {
		t.Error("node-0 does not ask for traffic")
	}
	setLink(t, f, fleet.ClientsName, fleet.BalancerName, fleet.Link{})
	for range 10 {
		if who, err := chatFrom(ctx, f.DialClient, f.URL()); err != nil || who == "node-0" {
			t.Errorf("%q, %v: answered by a node that the balancer does not reach", who, err)
		}
	}
	heal(t, f)
	if err := f.WaitHealthy(ctx, "node-0", true); err != nil {
		t.Fatal(err)
	}
	before := f.Engines()[0].Server().Stats().Requests
	setLink(t, f, fleet.Everybody, "engine-0", fleet.Link{Loss: 1})
	for range 2 {
		if _, err := chatFrom(ctx, f.DialClient, f.URL()); err != nil {
			t.Error(err)
		}
	}
	if n := f.Engines()[0].Server().Stats().Requests - before; n != 0 {
		t.Errorf("engine-0 got %d requests over links that lose everything", n)
	}
	heal(t, f)
	if err := f.Partition([]string{"node-0"}, []string{"node-1", "node-2"}); err != nil {
		t.Fatal(err)
	}
	if err := f.ResetLink("node-0", "node-1"); err != nil {
		t.Fatal(err)
	}
	awaitPeer(ctx, t, f.Node("node-1"), "node-0", false)
	if err := f.Heal(); err != nil {
		t.Fatal(err)
	}
	awaitPeer(ctx, t, f.Node("node-1"), "node-0", true)
	served(t, f)
}

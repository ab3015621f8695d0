//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// net/http keeps a closing connection for half a second; that is not a leak.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func TestChatBodies(t *testing.T) {
	for _, s := range bodySizes {
		bodies, err := chatBodies(5, s.bytes, true, 7)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := chatBodies(5, s.bytes, true, 7)
		other, _ := chatBodies(5, s.bytes, true, 8)
		for i, b := range bodies {
			if len(b) != s.bytes || !json.Valid(b) {
				t.Fatalf("body %d: %d bytes, want %d; valid JSON: %v", i, len(b), s.bytes, json.Valid(b))
			}
			if !bytes.Equal(b, again[i]) {
				t.Errorf("body %d differs under the same seed", i)
			}
			if bytes.Equal(b, other[i]) || bytes.Equal(b, bodies[(i+1)%5]) {
				t.Errorf("body %d is not one of its own", i)
			}
		}
	}
	if _, err := chatBodies(1, 100, false, 1); err == nil {
		t.Error("a body too small for a conversation was not refused")
	}
}

func TestPairedMedian(t *testing.T) {
	if got := paired([]float64{10, 30, 90}, []float64{10, 20, 100}, ratio); got != 1 {
		t.Errorf("paired ratio %v, want 1", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median %v, want 2.5", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing %v", got)
	}
}

// TestMomentsOfSelf: a busy process uses CPU time, and the machine with it.
func TestMomentsOfSelf(t *testing.T) {
	before, err := readMoment(0, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for x := 0; time.Now().Before(deadline); x++ {
		if x%1000 != 0 {
			continue
		}
		now, err := readMoment(0, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now.backend >= before.backend+20*time.Millisecond && now.ours > before.ours && now.busy > before.busy && now.contender == 0 {
			return
		}
	}
	t.Error("busy for ten seconds and no CPU time counted")
}

func TestBackend(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { acceptLoop(ln); close(ended) }()
	defer func() { ln.Close(); <-ended }()
	bodies, err := chatBodies(3, 1<<10, true, 1)
	if err != nil {
		t.Fatal(err)
	}
	paced, err := runPaced(context.Background(), bodies, ln.Addr().String(), 4, 200, time.Second)
	if err != nil || paced.errors > 0 || paced.units != 200 || paced.values[p50] > paced.values[p99] {
		t.Errorf("paced: %+v, %v", paced, err)
	}
	load := streamLoad{count: 20, chunks: 5, period: 10 * time.Millisecond}
	s, err := runStreams(context.Background(), load, bodies[0], ln.Addr().String(), 0)
	if err != nil || s.errors > 0 || s.units != 100 {
		t.Errorf("streams: %+v, %v", s, err)
	}
	asked := append(bytes.TrimSuffix(bodies[0], []byte("}")), `,"stream_options":{"include_usage":true}}`...)
	if s, err := runStreams(context.Background(), load, asked, ln.Addr().String(), 0); err != nil || s.errors != 20 {
		t.Errorf("asked for usage: %+v, %v", s, err)
	}
}

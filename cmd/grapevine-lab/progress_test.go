package main

import (
	"bytes"
	"testing"
	"time"

	"grapevine.example/chaos/fleetsim"
	"grapevine.example/chaos/replay"
)

func TestProgressTexts(t *testing.T) {
	if got, want := replayed("prefix", replay.Progress{Elapsed: 40 * time.Second, Sent: 7, InFlight: 2, Failed: 1}, 30*time.Second),
		"prefix: 30 of 30 s, 7 sent, 2 under way, 1 failed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var all simulated
	for _, step := range []struct {
		now  fleetsim.Progress
		want string
	}{
		{fleetsim.Progress{Runs: 2, Run: 1, Policy: "prefix", Nodes: 8, Ended: 5, Total: 10}, " 25 %, prefix on 8: 5 requests"},
		{fleetsim.Progress{Runs: 2, Run: 0, Policy: "random", Nodes: 1, Ended: 3, At: time.Second, Span: 4 * time.Second}, " 38 %, random on 1: 3 requests"},
		{fleetsim.Progress{Runs: 2, Run: 1, Policy: "prefix", Nodes: 8, Ended: 10, Done: true}, " 62 %, prefix on 8: 10 requests"},
	} {
		if got := all.update(step.now); got != step.want {
			t.Errorf("%q, want %q", got, step.want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	var out bytes.Buffer
	for _, tc := range []struct {
		line *progressLine
		want string
	}{
		{newProgressLine(&out), ""},
		{&progressLine{w: &out}, "\r\033[K1\r\033[K2\r\033[K"},
	} {
		out.Reset()
		tc.line.show("%d", 1)
		tc.line.show("%d", 2)
		tc.line.finish()
		if out.String() != tc.want {
			t.Errorf("%q, want %q", out.String(), tc.want)
		}
	}
}

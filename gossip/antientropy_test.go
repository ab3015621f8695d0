package gossip

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grapevine/gossip/wire"
)

// A large fleet that was apart for long differs in more than one answer may list. The answer is what is allowed, the newest.
func TestAnswerToADigestIsNotLongerThanAllowed(t *testing.T) {
	j := newJournal(64<<20, t0-1)
	buckets := journalAge.Milliseconds()/wire.BucketMillis - 2
	streams := int64(maxRunsPerDigest)/buckets + 50
	for b := range buckets {
		for s := range streams {
			put(j, streamID{fmt.Sprintf("n%d", s), 1}, uint64(b+1), t0+b*wire.BucketMillis, 10)
		}
	}
	f := &Fleet{journal: j}
	answer := &digestJob{request: 1}
	for b := range buckets {
		answer.buckets = append(answer.buckets, t0/wire.BucketMillis+b)
	}
	runs, newest := 0, uint64(0)
	for done := false; !done; {
		var out []byte
		out, done = answer.fill(f, nil, bulkSize)
		r := wire.NewReader(bytes.NewReader(out), wire.NewsSize)
		for {
			kind, body, _, err := r.Next()
			if err != nil {
				break
			}
			if kind != wire.KindRuns {
				continue
			}
			if _, err := wire.DecodeRuns(body, func(bucket uint64, _ wire.Run) {
				runs++
				newest = max(newest, bucket)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if runs != maxRunsPerDigest || newest != uint64(t0/wire.BucketMillis+buckets-1) {
		t.Errorf("%d runs, at most %d; the newest of bucket %d", runs, maxRunsPerDigest, newest)
	}
}

// A publisher that is slow to answer is not sent the same question until there are too many.
func TestDigestIsAskedForOnceUntilItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		node := net.start("n0", nil)
		var asked atomic.Int64
		slow := net.intrude("slow", func(h *hostile, c net2) {
			c.Write(h.start())
			r := wire.NewReader(c, wire.RequestSize)
			for {
				kind, body, _, err := r.Next()
				if err != nil {
					return
				}
				switch kind {
				case wire.KindPing:
					sent, _ := wire.DecodePing(body)
					c.Write(wire.AppendPong(nil, wire.Pong{Sent: sent, Received: time.Now().UnixNano(), Replied: time.Now().UnixNano(), Next: 1}))
				case wire.KindDigest:
					asked.Add(1)
				}
			}
		})
		time.Sleep(5 * time.Minute)
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times on one stream", n)
		}
		node.stop(t)
		slow.Stop(context.Background())
	})
}

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

const cut = `"kv_transfer_params":{"remote_host":"10.0.0.1"},`

// An edited body arrives whole at any size, over TLS, and after a retry.
func TestEditedBodyIsSentInPieces(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, size := range []int{10, smallBody - 60, smallBody + 1, 300 << 10} {
			t.Run(fmt.Sprintf("tls=%v/%d", secure, size), func(t *testing.T) {
				var seen [2]*backend
				for i := range seen {
					seen[i] = newBackend(t, secure, func(c *upstreamSide, _ seenRequest) bool {
						switch c.begun {
						case 1:
							return c.send(jsonReply(503, "{}"))
						case 2:
							return false
						}
						return c.send(jsonReply(200, okBody))
					})
				}
				r := newRig(t, []string{seen[0].addr, seen[1].addr})
				text := strings.Repeat("x", size)
				messages := `"messages":[{"role":"user","content":"` + text + `"}]`
				body := `{"stream":true,` + cut + messages + `,"bootstrap_room":7,"model":"m"}`
				want := `{"stream_options":{"include_usage":true},"stream":true,` + messages + `,"model":"m"}`
				r.raw(request("POST", "/v1/chat/completions", body)) // 503 from both
				got := append(seen[0].requests(), seen[1].requests()...)
				if len(got) < 2 {
					t.Fatalf("%d attempts", len(got))
				}
				for _, req := range got {
					if req.body != want || req.ContentLength != int64(len(want)) {
						t.Errorf("the engine got %d bytes, %.120q, length %d; want %d", len(req.body), req.body, req.ContentLength, len(want))
					}
				}
				if rec := r.record(0); rec.RequestBytes != len(body) {
					t.Errorf("%d bytes received, %d recorded", len(body), rec.RequestBytes)
				}
			})
		}
	}
}

func TestEditsDoNotCopyTheBody(t *testing.T) {
	r := newRig(t, []string{discarding(t)})
	allocated := func(members string) uint64 {
		body := `{"model":"m",` + members + `"messages":[{"role":"user","content":"` + strings.Repeat("all work ", 3<<20) + `"}]}`
		req := request("POST", "/v1/chat/completions", body)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := r.dial()
		defer c.Close()
		_, err := io.WriteString(c, req)
		must(t, err)
		readReply(t, bufio.NewReader(c), "POST").want(t, 200)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	least := func(members string) uint64 { // other goroutines allocate too
		return min(allocated(members), allocated(members), allocated(members))
	}
	plain, edited := least(""), least(`"stream":true,`+cut)
	if edited > plain+1<<20 {
		t.Errorf("a body of 27 MiB costs %d bytes as it is and %d with edits", plain, edited)
	}
	t.Logf("27 MiB: %d KiB allocated as it is, %d KiB with edits", plain>>10, edited>>10)
}

func discarding(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		_, _ = io.WriteString(w, okBody)
	})}
	go s.Serve(ln)
	t.Cleanup(func() { s.Close() })
	return ln.Addr().String()
}

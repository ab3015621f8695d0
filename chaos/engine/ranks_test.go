package engine

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	reports "grapevine.example/proxy/engine"
)

func TestRanks(t *testing.T) {
	for _, style := range []MetricsStyle{StyleVLLM, StyleSGLang} {
		cfg := fastConfig()
		cfg.Ranks, cfg.MetricsStyle = 3, style
		l := startServer(t, cfg)
		body := chat(`,"max_tokens":4`, strings.Repeat("A long text. ", 100))
		for _, c := range []struct {
			rank   string
			status int
		}{{"1", 200}, {"1", 200}, {"2", 200}, {"3", 400}, {"-1", 400}, {"x", 400}} {
			req, err := http.NewRequest("POST", l.url+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-data-parallel-rank", c.rank)
			resp, err := l.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("rank %s: %d", c.rank, resp.StatusCode)
			}
		}
		resp, err := l.client.Get(l.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for rank, found := range []bool{false, true, false} {
			m, err := reports.ParseRank(page, rank)
			if err != nil || m.KVTokens != int64(cfg.KVTokens) || (m.HitTokens > 0) != found || m.Started < 1 {
				t.Errorf("%s, rank %d: %+v, %v", style, rank, m, err)
			}
		}
		if s := l.Stats(); s.Finished != 3 || s.KVTokens != 3*cfg.KVTokens {
			t.Errorf("%+v", s)
		}
	}
}

func TestStatsAdd(t *testing.T) {
	var one, sum Stats
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(int64(i + 1))
	}
	if sum.add(&one); sum != one {
		t.Errorf("%+v and nothing are %+v", one, sum)
	}
}

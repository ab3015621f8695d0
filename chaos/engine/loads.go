package engine

import (
	"net/http"
	"time"
)

// loads is SGLang's answer with include=core, which is all that is modelled.
func (s *Server) loads(w http.ResponseWriter, _ *http.Request) {
	var m Stats
	uncached, waiting := 0, 0
	err := s.driver.do(func(time.Duration) {
		m, uncached = s.driver.model.Stats(), s.driver.model.Uncached()
		for _, j := range s.driver.model.waiting {
			waiting += j.PromptTokens
		}
	})
	if err != nil {
		writeError(w, endpointNone, err)
		return
	}
	now, used := time.Now(), m.KVUsed-m.KVEvictable
	writeJSON(w, http.StatusOK, object{
		"timestamp": now.UTC().Format("2006-01-02T15:04:05.000000-07:00"), "version": "emulated", "accelerator": nil, "num_accelerators": 1,
		"loads": []object{{
			"timestamp": float64(now.UnixMicro()) / 1e6, "dp_rank": 0, "num_running_reqs": m.Running, "num_waiting_reqs": m.Waiting,
			"num_waiting_uncached_tokens": uncached, "num_used_tokens": used, "num_total_tokens": used + waiting, "max_total_num_tokens": m.KVTokens,
			"max_running_requests": s.cfg.MaxRunning, "token_usage": m.usage(),
			"cache_hit_rate":                float64(m.CachedTokens) / float64(max(m.PromptTokens, 1)),
			"total_prefill_uncached_tokens": m.PrefillTokens, "total_prefill_busy_us": m.PrefillBusy.Microseconds(),
		}},
	})
}

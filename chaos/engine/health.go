package engine

import (
	"net/http"
)

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

func (s *Server) healthGenerate(w http.ResponseWriter, r *http.Request) {
	f := &flight{seats: []*seat{newSeat(rootKey("", "health"), []byte("health"), 1, 0, false)}}
	err := s.driver.launch(f)
	if err == nil {
		defer f.abort()
		err = f.wait(r.Context())
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		s.writeError(w, endpointNone, launchError(err))
		return
	}
	s.health(w, r)
}

func (s *Server) load(w http.ResponseWriter, r *http.Request) {
	m, err := s.modelStats()
	if err != nil {
		s.writeError(w, endpointNone, launchError(err))
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"server_load": m.Running + m.Waiting})
}

func (s *Server) modelInfo(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"model_path": s.cfg.Models[0], "tokenizer_path": s.cfg.Models[0], "is_generation": true})
}

func (s *Server) serverInfo(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"model_path": s.cfg.Models[0], "served_model_name": s.cfg.Models[0], "version": s.cfg.Version,
		"max_total_num_tokens": s.cfg.KVTokens, "page_size": s.cfg.BlockTokens, "max_running_requests": s.cfg.MaxRunning,
		"chunked_prefill_size": s.cfg.ChunkTokens, "context_length": s.cfg.MaxModelLen,
	})
}

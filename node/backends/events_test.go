package backends

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"grapevine.example/raftstore"
)

func TestEngineEventsAreBounded(t *testing.T) {
	var out bytes.Buffer
	d, now := &Directory{cfg: Config{Log: zerolog.New(&out)}}, &Roster{Version: 2}
	for i := range 2000 {
		now.List = append(now.List, &Engine{Backend: raftstore.Backend{Name: fmt.Sprint(i)}})
	}
	d.logChanges(&Roster{Version: 1}, now)
	if lines := strings.Count(out.String(), "\n"); lines != maxEngineEvents+1 || !strings.Contains(out.String(), `"more":1936`) {
		t.Errorf("%d lines", lines)
	}
}

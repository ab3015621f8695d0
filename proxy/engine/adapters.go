package engine

import (
	"bytes"
	"strings"
)

// Adapters is what an engine reports of its LoRA adapters.
type Adapters struct {
	Slots int      // adapters that a batch may use; 0: not reported
	InUse []string // that running or waiting requests use
}

// ParseAdapters reads the adapters from a metrics page of vLLM. Its metric has a sample for every state so far, whose value is the
// time; the latest counts. With several data-parallel ranks the samples of all ranks are mixed, so only the slots are read.
func ParseAdapters(page []byte) (a Adapters) {
	latest := -1.0
	for line := range bytes.Lines(page) {
		name, labels, rest := splitSample(bytes.TrimSpace(line))
		if string(name) != "vllm:lora_requests_info" {
			continue
		}
		at, ok := number(rest)
		if !ok || at < latest {
			continue
		}
		latest = at
		a = Adapters{}
		for name, value := range labelPairs(labels) {
			switch string(name) {
			case "max_lora":
				if n, ok := number(value); ok {
					a.Slots = int(min(n, maxAdapterSlots))
				}
			case "running_lora_adapters", "waiting_lora_adapters":
				for _, adapter := range strings.Split(string(value), ",") {
					if adapter = strings.TrimSpace(adapter); adapter != "" {
						a.InUse = append(a.InUse, adapter)
					}
				}
			}
		}
	}
	if len(Ranks(page)) > 1 {
		a.InUse = nil
	}
	return a
}

const maxAdapterSlots = 1 << 16

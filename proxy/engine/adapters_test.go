package engine

import (
	"reflect"
	"testing"
)

func TestParseAdapters(t *testing.T) {
	const idle = `vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.79e+09` + "\n"
	const busy = `vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, fr",waiting_lora_adapters="de"} 1.79000001e+09` + "\n"
	for _, c := range []struct {
		name, page string
		want       Adapters
	}{
		{"none", vllmPage, Adapters{}},
		{"the latest is not the last", busy + idle, Adapters{4, []string{"sql", "fr", "de"}}},
		{"the latest is the last", idle + busy, Adapters{4, []string{"sql", "fr", "de"}}},
		{"ranks", vllmPage + busy, Adapters{Slots: 4}},
		{"no numbers", `vllm:lora_requests_info{max_lora="x",running_lora_adapters="a"} NaN` + "\n", Adapters{}},
		{"huge", `vllm:lora_requests_info{max_lora="1e300"} 1` + "\n", Adapters{Slots: maxAdapterSlots}},
	} {
		if got := ParseAdapters([]byte(c.page)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

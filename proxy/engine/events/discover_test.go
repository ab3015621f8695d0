package events

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func TestDiscover(t *testing.T) {
	for _, c := range []struct {
		name, path, answer string
		want               []Source
		err                string
	}{
		{"vllm by rank", "/kv_event_sources",
			`{"1":{"endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5658","topic":"kv","buffer_steps":10000},
			"0":{"endpoint":"tcp://0.0.0.0:5557","replay_endpoint":null,"topic":""}}`,
			[]Source{{Rank: 0, Endpoint: "127.0.0.1:5557", Session: InHeader},
				{Rank: 1, Endpoint: "127.0.0.1:5558", Replay: "127.0.0.1:5658", Topic: "kv", Session: InHeader}}, ""},
		{"vllm as list", "/kv_event_sources",
			`[{"data_parallel_rank":3,"endpoint":"tcp://localhost:5557","replay_endpoint":"tcp://[::]:5600","topic":"kv"}]`,
			[]Source{{Rank: 3, Endpoint: "127.0.0.1:5557", Replay: "127.0.0.1:5600", Topic: "kv", Session: InHeader}}, ""},
		{"vllm elsewhere", "/kv_event_sources", `{"0":{"endpoint":"tcp://10.0.0.7:5557","topic":""}}`, nil, `another host for its cache events: "10.0.0.7"`},
		{"vllm replay elsewhere", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://evil:1"}}`, nil, `"evil"`},
		{"vllm ipc", "/kv_event_sources", `{"0":{"endpoint":"ipc:///tmp/kv"}}`, nil, "only tcp://"},
		{"vllm without port", "/kv_event_sources", `{"0":{"endpoint":"tcp://*"}}`, nil, "no port"},
		{"vllm with port 0", "/kv_event_sources", `{"0":{"endpoint":"tcp://*:0"}}`, nil, "1 to 65535"},
		{"vllm, rank twice", "/kv_event_sources",
			`[{"data_parallel_rank":0,"endpoint":"tcp://*:1"},{"data_parallel_rank":0,"endpoint":"tcp://*:2"}]`, nil, "named twice"},
		{"vllm, no rank", "/kv_event_sources", `{"x":{"endpoint":"tcp://*:1"}}`, nil, "not a number"},
		{"vllm off", "/kv_event_sources", `{}`, nil, "publishes no cache events"},
		{"not JSON", "/kv_event_sources", `<html>`, nil, "/kv_event_sources: "},
		{"sglang", "/server_info",
			`{"model_path":"m","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"t","block_size":64,"dp_size":2,
			"replay_endpoint_port_base":5657,"load_topic":"load"}}`,
			[]Source{{Rank: 0, Endpoint: "127.0.0.1:5557", Replay: "127.0.0.1:5657", Topic: "t", BlockSize: 64, Session: InBody},
				{Rank: 1, Endpoint: "127.0.0.1:5558", Replay: "127.0.0.1:5658", Topic: "t", BlockSize: 64, Session: InBody}}, ""},
		{"sglang without replay", "/server_info",
			`{"kv_events":{"publisher":"zmq","endpoint_host":"","endpoint_port_base":5557,"topic":"","block_size":1,
			"dp_size":1,"replay_endpoint_port_base":null}}`,
			[]Source{{Endpoint: "127.0.0.1:5557", BlockSize: 1, Session: InBody}}, ""},
		{"sglang that keeps sessions", "/server_info",
			`{"enable_session_radix_cache":true,"kv_events":{"publisher":"zmq","endpoint_port_base":5557}}`,
			[]Source{{Endpoint: "127.0.0.1:5557"}}, ""},
		{"sglang off", "/server_info", `{"kv_events":null}`, nil, "publishes no cache events"},
		{"sglang, many ranks", "/server_info", `{"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"dp_size":1000000000}}`, nil, "at most 1024"},
		{"sglang, high port", "/server_info",
			`{"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"dp_size":2}}`, nil, "above 65535"},
		{"sglang, block size", "/server_info", `{"kv_events":{"publisher":"zmq","endpoint_port_base":5557,"block_size":-1}}`, nil, "block size"},
		{"neither", "/", ``, nil, "publishes no cache events"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("key %q", r.Header.Get("Authorization"))
				}
				if r.URL.Path != c.path {
					http.NotFound(w, r)
					return
				}
				_, _ = w.Write([]byte(c.answer))
			}))
			defer srv.Close()
			got, err := Discover(context.Background(), srv.Client(), srv.URL, "secret")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(c.name, "elsewhere") != errors.Is(err, ErrForeign) {
					t.Errorf("%v, want %s", err, c.err)
				}
				if strings.Contains(c.err, "publishes no") != errors.Is(err, ErrNone) {
					t.Errorf("%v is not ErrNone", err)
				}
			} else if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestDiscoverSickEngine(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	defer srv.Close()
	if _, err := Discover(context.Background(), srv.Client(), srv.URL, ""); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("500: %v", err)
	}
}

func TestConfigured(t *testing.T) {
	for address, want := range map[string]Source{
		"tcp://10.0.0.7:5557":                            {Endpoint: "10.0.0.7:5557"},
		"tcp://engine-1:5557?replay=5657&topic=kv":       {Endpoint: "engine-1:5557", Replay: "engine-1:5657", Topic: "kv"},
		"tcp://[2001:db8::1]:5557?replay=collector:5657": {Endpoint: "[2001:db8::1]:5557", Replay: "collector:5657"},
		"tcp://[2001:db8::1]:5557?replay=5657":           {Endpoint: "[2001:db8::1]:5557", Replay: "[2001:db8::1]:5657"},
	} {
		want.Session = InHeader
		if got, err := Configured(address); err != nil || got != want {
			t.Errorf("%s: %+v, %v", address, got, err)
		}
	}
	for _, address := range []string{"", "tcp://*:5557", "tcp://h", "tcp://h:0", "http://h:1", "ipc:///tmp/x",
		"tcp://h:1/x", "tcp://u@h:1", "tcp://h:1?replay=x",
		"tcp://h:1?replay=0", "tcp://h:1?topc=kv", "tcp://h:1?topic=a&topic=b"} {
		if got, err := Configured(address); err == nil {
			t.Errorf("%s: %+v", address, got)
		} else if !strings.Contains(err.Error(), "tcp://HOST:PORT") {
			t.Errorf("%s: no remedy in %v", address, err)
		}
	}
}

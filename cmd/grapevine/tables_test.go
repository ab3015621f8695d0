package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grapevine.example/node/admin"
	"grapevine.example/node/doctor"
	"grapevine.example/raftstore"
)

func TestTablesGolden(t *testing.T) {
	status := &admin.Status{
		Node: "one", Version: "v1.2.3", GoVersion: "go1.26.8", UptimeS: 754.2, Ready: true, Listen: "10.0.0.1:8080", Admin: "127.0.0.1:8081",
		Strategy: "prefix", Backends: 4, InFlight: 3, Connections: 12, BlockBytes: 512, KeyID: "1f2e3d4c", Picks: 1000,
		Rungs: map[string]uint64{"cache": 800, "hash": 200, "load": 0}, Caches: map[string]int{"exact": 3, "predicted": 1, "reported": 0}, Tree: admin.TreeStatus{Facts: 123456, Bytes: 8 << 20},
		Fleet: &admin.FleetStatus{Nodes: 3, WarmFraction: 1, StalenessMS: 61.5, BlindDecisions: 2},
	}
	status.Reload = &admin.ReloadStatus{AgeS: 75, Error: "grapevine.yaml:3: strategyy: unknown key: did you mean strategy?",
		Applied:     []admin.SettingChange{{Key: "log_level", From: "info", To: "debug"}, {Key: "pass_paths", To: "/classify"}},
		AtNextStart: []admin.SettingChange{{Key: "listen", From: ":8080", To: ":9090"}},
	}
	status.Affinity = []admin.Affinity{
		{Model: "m", RequestsPerS: 12.34, PromptsS: 8, PrefillS: 3.04, SavedS: 3.1, WaitedS: 0.2, Price: 2.4,
			Verdict: "caches save 62 % of prefill; choosing them saves 3.1 s of prefill for 0.2 s of longer waits, per second"},
		{Model: "*", RequestsPerS: 0.5, PromptsS: 0.1, PrefillS: 0.1, Price: 2,
			Verdict: "routed by load: caches save 0 % of prefill; choosing them adds less than 1 %"},
	}
	receipt := &admin.Receipt{Backend: "gpu-node-01:8000", Strategy: "prefix", Rung: "cache", PromptTokens: 12500, PredictedTokens: 12000, Exact: true, MatchedBlocks: 93, Blocks: 97, LoadFrom: "engines", LoadAgeS: 0.61,
		Why: "compared with gpu-node-12:8000, which holds 0 tokens, it saves 1.2 s of prefill and 2.9 s of other requests' time for 0.4 s of waiting",
		Candidates: []admin.Candidate{
			{Backend: "gpu-node-01:8000", MatchedBlocks: 93, HeldTokens: 12000, QueuedTokens: 4000, Active: 12, Rate: 10000, AgeS: 754, Cost: 0.58, WaitS: 0.41, ComputeS: 0.05, LaterS: 0.12},
			{Backend: "gpu-node-12:8000", Rate: 10000, Cost: 4.26, WaitS: 0.01, ComputeS: 1.25, LaterS: 3},
		}}
	byLoad := *receipt
	byLoad.Strategy, byLoad.Rung, byLoad.Why = "least-request", "load", ""
	elsewhere, here := *receipt, *receipt
	elsewhere.Prefill = &admin.PrefillReceipt{Backend: "gpu-node-20:8000", Elsewhere: true, PredictedTokens: 2048, RemoteS: 0.145, AloneS: 1.23}
	here.Prefill = &admin.PrefillReceipt{Backend: "gpu-node-20:8000", RemoteS: 0.145, AloneS: 0.012}
	alone := *status
	alone.Fleet, alone.Reload, alone.Ready, alone.NotReady = nil, nil, false, "draining"
	fresh := alone
	fresh.Certificate = &admin.CertificateStatus{NotAfter: time.Unix(1_800_000_000, 0)}
	expired := fresh
	expired.Certificate = &admin.CertificateStatus{Problem: "expired at 2026-11-01T00:00:00Z"}
	fresh.Picks, fresh.Rungs, fresh.Caches, fresh.Affinity, fresh.Tree = 0, nil, nil, []admin.Affinity{}, admin.TreeStatus{Bytes: 133_888}
	nodes := &admin.NodeList{
		Nodes: []admin.NodeStatus{
			{Name: "one", Self: true, State: "alive", SinceS: 754.2, Gossip: "10.0.0.1:7946", Data: "10.0.0.1:8080", Version: "v1.2.3"},
			{Name: "three", State: "failed", SinceS: 12.3, Gossip: "10.0.0.3:7946", Data: "10.0.0.3:8080", Version: "v1.2.2", LastError: "EOF"},
			{Name: "two", State: "alive", SinceS: 700, Connected: true, LagMS: 31.25, RTTMS: 0.42, OffsetMS: -2500, ReceivedBytes: 123_456_789, SentBytes: 9_999,
				Missed: 17, Gossip: "10.0.0.2:7946", Data: "10.0.0.2:8080", Version: "v1.2.3"},
			{Name: "wall", State: "alive", SinceS: 5, LagMS: 5000, ReceivedBytes: 50_000, Gossip: "10.0.0.4:7946", LastError: "dial tcp 10.0.0.4:7946: i/o timeout"},
		},
		Seeds: []admin.SeedStatus{
			{Seed: "10.0.0.2:7946", Addr: "10.0.0.2:7946", AgeS: 2},
			{Seed: "dns:nodes.example:7946", AgeS: 3.5, Error: "no such host"},
		},
		Refusals: []admin.RefusalStatus{{Name: "odd", Addr: "10.0.0.9:7946", AgeS: 4, Count: 3, Error: "10.0.0.9:7946 hashes prompts with another secret"}},
	}
	keys := &admin.KeyList{Nodes: []admin.NodeKeys{
		{Node: "one", Primary: "0011223344556677", Keys: []string{"0011223344556677", "8899aabbccddeeff"}, Persisted: true},
		{Node: "two", Primary: "0011223344556677", Keys: []string{"0011223344556677"}},
		{Node: "wall", Error: "i/o timeout"},
	}, Error: "wall: i/o timeout"}
	backends := &admin.BackendList{Backends: []admin.BackendStatus{
		{Name: "gpu1:8000", URL: "http://gpu1:8000", State: "active", Agreed: true, Source: "static", Active: 2, FleetActive: 9, PrefillTokens: 4096, Rate: 41200, RateFrom: "engine", HorizonS: 600, Cache: admin.CacheStatus{Known: "exact"},
			KVTokens: 1_200_000, Engine: &admin.EngineReport{From: "/v1/loads", AgeS: 0.42, KVUsage: .5}, Models: []string{"m", "n"}},
		{Name: "gpu2", URL: "http://gpu2:8000", State: "draining", Drained: true, DrainedBy: "operator", Agreed: true, Source: "admin", FleetActive: 1, HorizonS: 90, Models: []string{"m\x1b[2J"}, Reason: "new\ndisk \u202e", SinceS: 61},
		{Name: "gpu3", URL: "http://gpu3:8000", State: "down", Drained: true, Agreed: true, Source: "dns"},
		{Name: "gpu4", URL: "http://gpu4:8000", State: "avoided", Source: "static", Rate: 10000, RateFrom: "requests", Engine: &admin.EngineReport{From: "/metrics", AgeS: 3.1, Running: -1, Waiting: -1, KVUsage: -1}},
	}}
	rules := &admin.RuleSet{Source: "fleet", Version: 17, Text: "rules: []\n", Rules: []admin.RuleStatus{
		{Model: "batch-*", Strategy: "round-robin"}, {Path: "/v1/embeddings", Header: "x-tier", HeaderValue: "low", Strategy: "least-request"},
	}}
	ownRules := &admin.RuleSet{Source: "configuration"}
	dry := &admin.RuleChange{Changed: admin.Changed{Version: 17, Changed: true}, DryRun: true, Difference: " rules:\n-  - {strategy: random}\n+  - {strategy: session}\n"}
	raft := &admin.RaftStatus{Node: "one"}
	raft.ID, raft.Role, raft.Leader, raft.Term, raft.LastIndex, raft.Committed, raft.Version = "a1", "leader", "a1", 3, 120, 120, 118
	raft.Servers = []raftstore.ServerStatus{
		{ID: "a1", Name: "one", Addr: "10.0.0.1:7946", Voter: true, Healthy: true, Index: 120},
		{ID: "b2", Name: "two", Addr: "10.0.0.2:7946", Voter: true, Alive: true, Healthy: true, Index: 119},
		{ID: "c3", Addr: "10.0.0.3:7946"},
	}
	raft.Problem = "c3 (10.0.0.3:7946) is not reached"
	waiting := &admin.RaftStatus{Node: "one"}
	waiting.ID, waiting.Role, waiting.Waiting = "a1", "waiting", "for 2 of 3 nodes"
	prefixes := &admin.PrefixList{Prefixes: []admin.PrefixStatus{{Anchor: "00ff00ff00ff00ff", Tokens: 8192, Replicas: 5, AgeS: 300, ChangedS: 20, ExpiresS: 45,
		Backends: []string{"gpu-3:8000", "gpu-1:8000", "gpu-7:8000", "gpu-2:8000", "gpu-9:8000"}, Share: 0.18, Work: 1.3, Other: 0.4,
		Why: "18 % of the requests; keeps 1.30 backends busy, all else 0.40 of each"}}}
	sick := &doctor.Report{Node: "one", Per: "hour", Sampling: true, Reporting: 2, Applications: []doctor.Diagnosis{
		{Application: doctor.Application{Client: "search", Rule: "chat", Model: "llama"}, Verdict: doctor.Mend, Why: "31 % of the prompt tokens are computed again although the engines had their text",
			Samples: 48, SeenS: 1750, Requests: 3620, PromptTokens: 12.1e6, CachedTokens: 480_000, Findings: []doctor.Finding{
				{Field: "system", Kind: doctor.Insertion, Offset: 24, DifferBytes: 190, AgainBytes: 15_830, Share: 0.97, SavedTokens: 3.75e6, SavedPrefillS: 375.2, Remedy: "move what changes there to the end"},
				{Field: "tools", Kind: doctor.Order, DifferBytes: 4100, AgainBytes: 9000, Share: 0.1, SavedTokens: 90_000, SavedPrefillS: 9, Remedy: "send the tools in a fixed order"}}},
		{Application: doctor.Application{Model: "batch"}, Verdict: doctor.Skip, Why: "prompts share nothing", Samples: 9, Requests: 40, PromptTokens: 1.2e9},
	}}
	callers := &admin.ClientList{File: "/etc/grapevine/clients.yaml", Node: "gv1", UptimeS: 11100, Error: "clients.yaml:3: clients[1].name: is missing", Clients: []admin.ClientStatus{
		{Name: "search", Keys: 2, Models: []string{"llama*"}, Paths: []string{"/v1/chat/completions"}, Priority: "interactive", Weight: 4, TokensPerMinute: 2_000_000, InFlight: 400, TokensUsed: 1_234_567, Requests: 17, Here: admin.ClientAccount{
			Requests: 21_345, Failed: 3, Refused: 17, PromptTokens: 81_000_000, CachedTokens: 70_123_456, OutputTokens: 5_432_100, PrefillS: 1087.6, DecodeS: 2540.1, SavedS: 7012.3, Cost: 2.519,
			TTFTP50: 0.087, TTFTP90: 0.41, SpeedP50: 52.3, Waited: 120, WaitP50: 0.31, WaitP90: 2.2, QueueRefused: 7,
		}},
		{Name: "public", Anonymous: true, Priority: "batch", Weight: 1, Trusted: true, Requests: 3},
	}}
	for name, print := range map[string]func(io.Writer) error{
		"backends":      func(w io.Writer) error { return printBackends(w, backends) },
		"rules":         func(w io.Writer) error { return printRules(w, rules) },
		"rules-own":     func(w io.Writer) error { return printRules(w, ownRules) },
		"rules-dry":     func(w io.Writer) error { return printRuleChange(w, dry) },
		"clients":       func(w io.Writer) error { return printClients(w, callers) },
		"clients-usage": func(w io.Writer) error { return printUsage(w, callers) },
		"clients-none":  func(w io.Writer) error { return printClients(w, &admin.ClientList{}) },
		"raft":          func(w io.Writer) error { return printRaft(w, raft) },
		"raft-waiting":  func(w io.Writer) error { return printRaft(w, waiting) },
		"prefixes":      func(w io.Writer) error { return printPrefixes(w, prefixes) },
		"doctor":        func(w io.Writer) error { return printDoctor(w, sick) },
		"doctor-none":   func(w io.Writer) error { return printDoctor(w, &doctor.Report{Sampling: true}) },
		"doctor-off":    func(w io.Writer) error { return printDoctor(w, &doctor.Report{}) },
		"raft-json":     func(w io.Writer) error { return printJSON(w, raft) },
		"status":        func(w io.Writer) error { return printStatus(w, status) },
		"status-alone":  func(w io.Writer) error { return printStatus(w, &alone) },
		"status-fresh":  func(w io.Writer) error { return printStatus(w, &fresh) },
		"status-tls":    func(w io.Writer) error { return printStatus(w, &expired) },
		"explain":       func(w io.Writer) error { return printReceipt(w, receipt) },
		"explain-load":  func(w io.Writer) error { return printReceipt(w, &byLoad) },
		"explain-part":  func(w io.Writer) error { return errors.Join(printReceipt(w, &elsewhere), printReceipt(w, &here)) },
		"nodes":         func(w io.Writer) error { return printNodes(w, nodes) },
		"keys": func(w io.Writer) error {
			ask := func(*admin.Client, context.Context) (*admin.KeyList, error) { return keys, nil }
			if err := showKeys(new(adminFlags), &streams{out: w}, ask); err == nil || err.Error() != keys.Error {
				t.Errorf("a node failed, the command says %v", err)
			}
			return nil
		},
		"status-json": func(w io.Writer) error { return printJSON(w, status) },
		"nodes-json":  func(w io.Writer) error { return printJSON(w, nodes) },
		"keys-json":   func(w io.Writer) error { return printJSON(w, keys) },
	} {
		var out bytes.Buffer
		if err := print(&out); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "tables", name+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%s changed; if that is meant: go test ./cmd/grapevine -run Golden -update\n%s", name, out.String())
		}
	}
}

func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for _, flag := range []string{"--listen", "--admin", "--gossip"} {
		args := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--secret", fleetSecret, "--log-level", "error", flag, addr}
		if got := grapevine(t, "", args...); got.code != exitFailed || !strings.Contains(got.err, addr) || !strings.Contains(got.err, "another process has it") {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}

func TestKeysGenerate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if got := grapevine(t, "", "keys", "generate", "--out", file); got.code != 0 || got.err != "" {
		t.Fatalf("%+v", got)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := admin.ParseGossipKey(text); err != nil || len(key) != 32 {
		t.Errorf("%d bytes: %v", len(key), err)
	}
	if got := grapevine(t, "", "keys", "generate", "--out", file); got.code != exitFailed || !strings.Contains(got.err, "give another name") {
		t.Errorf("a key was overwritten, or no remedy given: %+v", got)
	}
	if got := grapevine(t, "", "keys", "install", file+"-"); got.code != exitUsage || !strings.Contains(got.err, "See grapevine keys install --help.") {
		t.Errorf("%+v", got)
	}
	if got := grapevine(t, "", "keys", "generate"); got.code != 0 || got.out == string(text) {
		t.Errorf("%+v", got)
	}
}

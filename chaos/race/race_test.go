//go:build linux

package main

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"grapevine.example/chaos/replay"
	"grapevine.example/chaos/report"
	"grapevine.example/chaos/workload"
)

// The shares of the engines' compute that the traffic asks for without caches, as traffic.go says.
func TestTraffic(t *testing.T) {
	all, err := trafficOf([]string{"chat", "rag", "agents"}, 45*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{0.7, 0.8, 1.6} {
		src, err := all[i].Source(workload.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		tokens := 0
		for r := src.Next(); r != nil; r = src.Next() {
			tokens += r.PromptTokens
			src.Done(r, r.At)
		}
		if share := float64(tokens) / 45 / (engineCount * 36000); math.Abs(share-want) > 0.05 {
			t.Errorf("%s asks for %.2f of the engines' compute, want %.1f", all[i].Label, share, want)
		}
	}
	if _, err := trafficOf([]string{"chat", "video"}, time.Second); err == nil {
		t.Error("an unknown kind of traffic was accepted")
	}
}

func TestChoose(t *testing.T) {
	list, err := choose([]string{"nginx", "grapevine"}, false)
	if err != nil || strings.Join(names(list), " ") != "grapevine nginx" {
		t.Errorf("%v, %v", names(list), err)
	}
	if list, err = choose(split(""), false); err != nil || len(list) != len(field) {
		t.Errorf("all: %v, %v", names(list), err)
	}
	if _, err := choose([]string{"envoy"}, false); err == nil {
		t.Error("an unknown contender was accepted")
	}
}

func TestVerdict(t *testing.T) {
	made := func(name string, routers int, hits, p99 float64, errors int) *row {
		rep := report.Report{Requests: 1000, Errors: errors, HitRate: hits, TTFT: report.Quantiles{P99: p99}}
		return &row{Contender: name, Traffic: "chat", Routers: routers, Report: replay.Result{Report: rep}}
	}
	rows := []*row{
		made("grapevine", 1, 0.9, 1, 0), made("nginx", 3, 0.74, 900, 0), made("sglang-router", 1, 0.99, 2, 0),
		made("vllm-router", 3, 0.777, 387, 0), made("haproxy", 3, 0.99, 3, 11), // compared neither by hits nor by p99: too many failed
	}
	if got := verdict("chat", rows[1:]); got != "" {
		t.Errorf("without grapevine's fleet: %q", got)
	}
	for _, tc := range []struct {
		own  *row
		want string
	}{
		{made("grapevine", 3, 0.770, 386, 0), "met met"},
		{made("grapevine", 3, 0.769, 388, 0), "MISSED MISSED"},
		{made("grapevine", 3, 0.999, 1, 11), "MISSED MISSED"},
	} {
		got := verdict("chat", append(rows, tc.own))
		if !strings.Contains(got, "best other 0.777 (vllm-router)") || !strings.Contains(got, "best other 387 (vllm-router)") {
			t.Errorf("other rows were compared: %s", got)
		}
		words := strings.FieldsFunc(got, func(r rune) bool { return strings.ContainsRune(" ;\n", r) })
		var verdicts []string
		for _, w := range words {
			if w == "met" || w == "MISSED" {
				verdicts = append(verdicts, w)
			}
		}
		if strings.Join(verdicts, " ") != tc.want {
			t.Errorf("%v, want %s: %s", verdicts, tc.want, got)
		}
	}
}

func TestMissingPackageIsNamed(t *testing.T) {
	dir := t.TempDir()
	python := dir + "/bin/python"
	if err := os.MkdirAll(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(python, []byte("#!/bin/sh\necho no matching distribution; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	entrants, _ := choose([]string{"vllm-router"}, false)
	r := &result{Versions: map[string]string{}, Skipped: map[string]string{}}
	ready, err := prepare(t.Context(), options{venv: dir}, entrants, r)
	if err != nil || len(ready) != 0 || !strings.Contains(r.Skipped["vllm-router"], "no matching distribution") {
		t.Errorf("%v, %v, %v", names(ready), r.Skipped, err)
	}
}

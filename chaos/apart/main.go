// Apart measures prefill and decode engines against engines for whole requests: a router before eight
// emulated engines, in real time. It does not judge; docs/lab/apart.md has the result.
//
//	go run ./chaos/apart -seconds 60
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"grapevine.example/chaos/engine"
	"grapevine.example/node"
	"grapevine.example/node/config"
)

// load is Poisson traffic of two kinds, with the rates per second.
type load struct {
	name       string
	long, chat float64
}

// Long prompts have 16,000 tokens, all new; chats 1,000, of which 500 are common. An engine computes
// 10,000 tokens/s, and a step with a chunk of a prefill takes 51 ms instead of 20 ms.
var loads = []load{
	{"long prompts", 1.6, 0},
	{"chat", 0, 12},
	{"both", 1.2, 6},
	{"many long prompts", 3, 0},
}

const (
	longTokens, chatTokens, commonTokens = 16_000, 1_000, 500
	longOutput, chatOutput               = 100, 200
	tokensPerEvent                       = 5
	seed                                 = 1
)

var arms = map[string][]string{
	"8 mixed":      {"both", "both", "both", "both", "both", "both", "both", "both"},
	"4 + 4 vLLM":   {"prefill", "prefill", "prefill", "prefill", "decode", "decode", "decode", "decode"},
	"4 + 4 SGLang": {"prefill", "prefill", "prefill", "prefill", "decode", "decode", "decode", "decode"},
}

func main() {
	seconds := flag.Float64("seconds", 60, "length of each run")
	flag.Parse()
	fmt.Println("| load | engines | requests | failed | TTFT p50 | p99 | chat p99 | tokens/s p50 | slowest tenth |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, l := range loads {
		for _, arm := range []string{"8 mixed", "4 + 4 vLLM", "4 + 4 SGLang"} {
			if err := run(l, arm, *seconds); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

func run(l load, arm string, seconds float64) error {
	cfg := config.Default()
	cfg.Listen, cfg.Admin, cfg.NodeName, cfg.Log = "127.0.0.1:0", "127.0.0.1:0", "apart", zerolog.Nop()
	for i, role := range arms[arm] {
		own := engine.ServerConfig{
			Config: engine.Config{PrefillRate: 10_000}, Models: []string{"m"}, TokensPerChunk: tokensPerEvent,
			Transfer: true, TransferStart: 20 * time.Millisecond, TransferRate: 100_000,
		}
		if arm == "4 + 4 SGLang" {
			own.Transfer, own.Part = false, engine.Part(role)
		}
		s, err := engine.NewServer(own)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		if err := s.Start("127.0.0.1:0"); err != nil {
			return err
		}
		b := config.Backend{URL: "http://" + s.Addr(), Name: fmt.Sprint(role, i), Role: role}
		if own.Part != "" {
			_, port, _ := net.SplitHostPort(s.Addr())
			if b.BootstrapPort, err = strconv.Atoi(port); err != nil {
				return err
			}
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	if err := n.Start(context.Background()); err != nil {
		return err
	}
	defer func() { _ = n.Stop(context.Background()) }()
	for end := time.Now().Add(startTime); !n.Ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the router is not ready after %v", startTime)
		}
	}
	report(l, arm, drive("http://"+n.Addr(), l, seconds))
	return nil
}

// startTime bounds a router's start, which includes the first models of its engines.
const startTime = time.Minute

type outcome struct {
	chat bool
	ttft float64 // seconds
	rate float64 // tokens/s after the first event
	err  error
}

// drive sends the same requests at the same times to every arm.
func drive(url string, l load, seconds float64) []outcome {
	random := rand.New(rand.NewPCG(seed, 0))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var all []outcome
	var asked sync.WaitGroup
	begin := time.Now()
	for at := 0.0; ; {
		if at += random.ExpFloat64() / (l.long + l.chat); at > seconds {
			break
		}
		chat := random.Float64()*(l.long+l.chat) < l.chat
		body := request(random, chat)
		time.Sleep(time.Until(begin.Add(time.Duration(at * float64(time.Second)))))
		asked.Go(func() {
			o := ask(client, url, body)
			o.chat = chat
			mu.Lock()
			defer mu.Unlock()
			all = append(all, o)
		})
	}
	asked.Wait()
	return all
}

func request(random *rand.Rand, chat bool) []byte {
	tokens, output, common := longTokens, longOutput, ""
	if chat {
		tokens, output, common = chatTokens-commonTokens, chatOutput, strings.Repeat("be kind ", commonTokens/2)
	}
	text := make([]byte, tokens*engine.TokenBytes)
	for i := range text {
		text[i] = 'a' + byte(random.IntN(26))
	}
	body, err := json.Marshal(map[string]any{
		"model": "m", "stream": true, "max_tokens": output,
		"messages": []map[string]string{{"role": "system", "content": common}, {"role": "user", "content": string(text)}},
	})
	if err != nil {
		panic(err)
	}
	return body
}

func ask(client *http.Client, url string, body []byte) (o outcome) {
	began := time.Now()
	resp, err := client.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return outcome{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return outcome{err: fmt.Errorf("status %d: %s", resp.StatusCode, text)}
	}
	var first, last time.Time
	events, ended := 0, false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			ended = true
		case strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`):
			last = time.Now()
			if events++; events == 1 {
				first = last
			}
		}
	}
	if err := lines.Err(); err != nil {
		return outcome{err: err}
	}
	if !ended || events < 2 {
		return outcome{err: fmt.Errorf("%d events, whole %t", events, ended)}
	}
	return outcome{ttft: first.Sub(began).Seconds(), rate: float64((events-1)*tokensPerEvent) / last.Sub(first).Seconds()}
}

func report(l load, arm string, all []outcome) {
	var ttft, chat, rate []float64
	failed := 0
	for _, o := range all {
		if o.err != nil {
			failed++
			fmt.Fprintln(os.Stderr, o.err)
			continue
		}
		ttft, rate = append(ttft, o.ttft), append(rate, o.rate)
		if o.chat {
			chat = append(chat, o.ttft)
		}
	}
	fmt.Printf("| %s | %s | %d | %d | %s | %s | %s | %.0f | %.0f |\n", l.name, arm, len(all), failed,
		duration(ttft, 0.5), duration(ttft, 0.99), duration(chat, 0.99), quantile(rate, 0.5), quantile(rate, 0.1))
}

func duration(list []float64, q float64) string {
	if len(list) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", quantile(list, q))
}

func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[int(q*float64(len(list)-1))]
}

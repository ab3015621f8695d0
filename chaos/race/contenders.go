//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"grapevine.example/chaos/programs"
)

// contender is a router in one configuration. It is grapevine, a proxy from Debian (balance) or a
// router from Python's package registry (pip).
type contender struct {
	name    string
	routers []int // numbers of routers to race with
	short   bool  // takes part in short races
	program string
	balance string   // lines of the proxy's configuration
	pip     string   // package and version
	flags   []string // of the registry's router
}

// Hashing has no state, so one router with it decides as three do. The proxies hash the header that
// the clients send, and HAProxy's hash ring is as fine as nginx's with this weight. The LLM routers
// keep their default thresholds.
var field = []*contender{
	{name: "grapevine", routers: []int{1, 3}, short: true},
	{name: "nginx", routers: []int{3}, short: true, program: "nginx", balance: "hash $http_x_session_id consistent;"},
	{name: "haproxy", routers: []int{3}, program: "haproxy", balance: "balance hdr(x-session-id)\n  hash-type consistent djb2 avalanche\n  default-server weight 10"},
	{name: "sglang-router", routers: []int{1, 3}, short: true, program: "sglang-router", pip: "sglang-router==0.3.2", flags: []string{"launch", "--policy", "cache_aware"}},
	{name: "vllm-router", routers: []int{1, 3}, program: "vllm-router", pip: "vllm-router==0.1.17", flags: []string{"--policy", "cache_aware"}},
	{name: "vllm-router-session", routers: []int{3}, program: "vllm-router", pip: "vllm-router==0.1.17", flags: []string{"--policy", "consistent_hash"}},
}

func names(list []*contender) (out []string) {
	for _, c := range list {
		out = append(out, c.name)
	}
	return out
}

// choose returns the named contenders, in the order of the field; without names all, or those of a
// short race.
func choose(only []string, short bool) ([]*contender, error) {
	for _, name := range only {
		if !slices.Contains(names(field), name) {
			return nil, fmt.Errorf("no contender is called %q, want one of %s", name, strings.Join(names(field), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(field), func(c *contender) bool {
		if len(only) > 0 {
			return !slices.Contains(only, c.name)
		}
		return short && !c.short
	}), nil
}

// prepare installs the contenders' programs and returns the contenders that can run. It notes their
// versions in r, and why the others cannot run.
func prepare(ctx context.Context, o options, entrants []*contender, r *result) (ready []*contender, err error) {
	failed := make(map[string]error) // by package
	for _, c := range entrants {
		switch {
		case c.pip != "":
			if _, tried := failed[c.pip]; !tried {
				failed[c.pip] = installPip(ctx, o.venv, c.pip)
			}
			if err := failed[c.pip]; err != nil {
				r.Skipped[c.name] = err.Error()
				fmt.Fprintf(os.Stderr, "%s does not take part: %v\n", c.name, err)
				continue
			}
			r.Versions[c.name] = c.pip
		case c.program != "":
			if err := programs.Install(ctx, c.program); err != nil {
				return nil, err
			}
			r.Versions[c.name] = programs.Version(c.program, "-v")
		default:
			r.Versions[c.name] = programs.Version(o.grapevine, "version")
		}
		ready = append(ready, c)
	}
	return ready, ctx.Err()
}

// installPip puts a package into the Python environment at venv, unless it is there.
func installPip(ctx context.Context, venv, pkg string) error {
	python := filepath.Join(venv, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		if err := quietly(ctx, "python3", "-m", "venv", venv); err != nil {
			return err
		}
	}
	return quietly(ctx, python, "-m", "pip", "install", "-q", "--disable-pip-version-check", pkg)
}

// quietly runs a command and shows its output only in the error.
func quietly(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out[max(0, len(out)-2<<10):])
	}
	return nil
}

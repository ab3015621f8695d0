# Every target works on a fresh machine with Go and make. The nine that need more
# (test-clients, test-engines, test-deploy, test-packages, test-ui, test-alerts, bench-proxy, live-race, chaos) install it by name and say so.

GO       ?= go
BIN      := bin/grapevine
LAB      := bin/grapevine-lab
MAXSIZE  := 20000000
LINKED   := grapevine.example/cmd/commandline.linked
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PKGS     ?= ./...
FUZZTIME ?= 30s
COUNT    ?= 5
BENCH    ?= .
CPU      ?= 2
TRACES   ?= ../shared/traces
DESTDIR  ?=

comma := ,

BENCHSTAT   := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.6.1

.DEFAULT_GOAL := help
.PHONY: help build build-chaos build-newer install release test test-newer race fuzz bench bench-proxy live-race test-clients test-engines test-deploy test-packages test-restart test-ui test-alerts live lint sim herd traces mechanisms demo figures check chaos chaos-short chaos-planted chaos-virtual

help: ## list the targets
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## bin/grapevine, the router, of at most MAXSIZE bytes, and bin/grapevine-lab, which tries it; both static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X $(LINKED)=$(VERSION)' -o $(BIN) ./cmd/grapevine
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X $(LINKED)=$(VERSION)' -o $(LAB) ./cmd/grapevine-lab
	@size=$$(wc -c <$(BIN)); echo "$(BIN): $$size bytes"; test $$size -le $(MAXSIZE) || { echo "$(BIN) is larger than $(MAXSIZE) bytes: go list -deps ./cmd/grapevine shows what it links; if go build -ldflags=-dumpdep ./cmd/grapevine prints <ReflectMethod>, the linker keeps every exported method" >&2; exit 1; }

build-chaos: ## bin/grapevine-chaos, the router with a clock that can be stepped, a disk that can fail and defects that can be planted (a minute; never shipped)
	$(GO) run ./chaos/instrument -o $(BIN)-chaos -plant . ./cmd/grapevine

build-newer: ## bin/grapevine-newer, a router of a release that does not exist yet, to try upgrades with (never shipped)
	CGO_ENABLED=0 $(GO) build -trimpath -tags newer -ldflags '-X $(LINKED)=$(VERSION)-newer' -o $(BIN)-newer ./cmd/grapevine

install: build ## the router, its unit and its user into DESTDIR (docs/operate.md, "As a service")
	install -D -m 0755 $(BIN) $(DESTDIR)/usr/bin/grapevine
	install -D -m 0644 deploy/systemd/grapevine.service $(DESTDIR)/usr/lib/systemd/system/grapevine.service
	install -D -m 0644 deploy/systemd/grapevine.socket $(DESTDIR)/usr/lib/systemd/system/grapevine.socket
	install -D -m 0644 deploy/systemd/grapevine.sysusers $(DESTDIR)/usr/lib/sysusers.d/grapevine.conf
	install -D -m 0644 docs/operate.md $(DESTDIR)/usr/share/doc/grapevine/operate.md

# With GRAPEVINE_RELEASE_KEY, the file of a private key of OpenSSH, the checksums are signed.
release: ## tarballs, deb, rpm, container image, bill of materials, checksums and signature of VERSION into out/release; the same bytes each time (2 minutes)
	$(GO) run ./deploy/release -version '$(VERSION)' -out out/release

# The race detector needs cgo, and so a C compiler. Where there is none the
# tests still run, and say that they ran without it.
HAVE_CC := $(shell command -v $(firstword $(shell $(GO) env CC)) 2>/dev/null)
RACE    := $(if $(HAVE_CC),-race,)

# How many packages are tested at once: one more than 2 cores, because many tests wait most of the time. make lint vets.
PARALLEL ?= 3
TEST      = $(GO) test -p $(PARALLEL) -vet=off -shuffle=on

# Packages with tests that the race detector only slows down (chaos/bubble).
WITHOUT_RACE = $(sort $(dir $(shell grep -rl --include='*_test.go' -F bubble.SkipInRace .)))

test: ## all tests, with the race detector but for long computations, in random order (under 10 minutes on 2 cores)
	@$(if $(RACE),true,echo "no C compiler: testing without the race detector" >&2)
	$(TEST) $(RACE) -timeout 9m $(PKGS)
	$(if $(RACE),$(TEST) -timeout 5m $(if $(filter ./...,$(PKGS)),$(WITHOUT_RACE),$(PKGS)))

test-newer: ## the packages whose formats another release must read, as build-newer writes them (15 seconds)
	$(GO) test -tags newer -shuffle=on -timeout 3m ./gossip/...

race: ## the tests that run with the race detector, several times over, to find what happens rarely
	$(GO) test -race -shuffle=on -count=3 -timeout 30m $(PKGS)

fuzz: ## every fuzz target for FUZZTIME each (their seeds run in test already)
	@for pkg in $$($(GO) list $(PKGS)); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

# Half an hour or so; narrow it with BENCH=Match PKGS=./prefixtree. For how it
# grows with cores: CPU=1,4,16.
bench: ## benchmarks, COUNT times at CPU cores, into out/bench.txt and through benchstat
	@mkdir -p out
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) -cpu $(CPU) -timeout 90m $(PKGS) | tee out/bench.txt
	$(GO) run $(BENCHSTAT) out/bench.txt

bench-proxy: build ## side by side with nginx and HAProxy (installs nginx, haproxy and wrk with apt if missing)
	$(GO) run ./chaos/bench

live-race: build ## fleets of grapevine, nginx, HAProxy, sglang-router and vllm-router on chat, RAG and agents: hits, first-token time, cost; 25 minutes (RACE_FLAGS=-short: 3; installs with apt and pip what is missing)
	@mkdir -p out
	$(GO) run ./chaos/race -json out/race.json $(RACE_FLAGS)

test-clients: build ## the official openai and anthropic clients through a running router (installs them with pip)
	GRAPEVINE=$(CURDIR)/$(BIN) bash chaos/clients/run.sh

# ENGINES_CACHE names the directory in which the installed engine is kept (vLLM 5 GB, SGLang 9 GB below ~/.cache/grapevine).
test-engines: build ## the same clients through two routers to real engines, vLLM for CPUs, against the same calls made directly, and what cache events tell; 4 minutes (ENGINES=3: three engines, short: 2 minutes, without comparisons, sglang: SGLang, 12 minutes; installs the engine with uv)
	GRAPEVINE=$(CURDIR)/$(BIN) ENGINES=$(ENGINES) bash chaos/engines/run.sh

test-restart: ## a lone router replaced 20 times under load with streams of 30 s: nothing refused, nothing cut; a minute
	GRAPEVINE_RESTART=full $(GO) test -count=1 -v -timeout 4m -run '^TestReplaceUnderLoad$$' ./cmd/grapevine

test-deploy: build ## the recipes of the documents; the unit and the example fleet: systemd and HAProxy read them, a node leaves under traffic (DEPLOY=full: each; installs systemd, haproxy, curl, jq and ssh-keygen with apt if missing)
	@missing=; for need in haproxy systemd-analyze:systemd curl jq openssl ssh-keygen:openssh-client; do command -v "$${need%%:*}" >/dev/null || missing="$$missing $${need##*:}"; done; \
		test -z "$$missing" || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }
	GRAPEVINE_DEPLOY=$(or $(DEPLOY),short) $(GO) test -count=1 -timeout 5m -run '^TestRecipes$$' ./cmd/grapevine
	GRAPEVINE=$(CURDIR)/$(BIN) GRAPEVINE_DEPLOY=$(or $(DEPLOY),short) $(GO) test -count=1 -v -timeout 10m ./deploy

# PACKAGES_CACHE names the directory in which the machines' Debian is kept (400 MB below ~/.cache/grapevine).
test-packages: build ## two releases: the same bytes from two directories, lintian, and on three booted machines install, purge, upgrade under traffic, rpm, image, and a newcomer who has the README only; 5 minutes, as root (PACKAGES=short: the two debs only, installed, purged and upgraded, 2 minutes; installs debootstrap and others with apt if missing)
	GRAPEVINE=$(CURDIR)/$(BIN) PACKAGES=$(PACKAGES) bash deploy/package/test.sh

# A browser on a busy machine paints late: UI=short allows it longer, and leaves the largest fleet out.
test-ui: build ## the dashboard in Chromium, three routers with 2, 64 and 2,000 engines: console, first paint, axe-core, keyboard; 4 minutes (UI=short: two fleets; SHOTS=DIR: screenshots; installs chromium with apt, node packages with npm)
	@missing="$$(command -v chromium >/dev/null || echo chromium) $$(command -v npm >/dev/null || echo npm)"; \
		test "$$missing" = " " || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }
	@cd chaos/browser && npm install --silent --no-audit --no-fund --no-package-lock
	$(GO) run ./chaos/browser $(if $(filter short,$(UI)),-engines 2$(comma)64 -paint 5s) $(if $(SHOTS),-shots $(abspath $(SHOTS)))

test-alerts: build build-chaos ## the alert rules: their unit tests by promtool, then a Prometheus that watches three routers with faults, each of which fires and clears its alerts; 5 minutes (installs prometheus with apt if missing)
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; }
	cd deploy/prometheus && promtool check config prometheus.yml && promtool test rules grapevine.rules_test.yml
	GRAPEVINE=$(CURDIR)/$(BIN) GRAPEVINE_INSTRUMENTED=$(CURDIR)/$(BIN)-chaos GRAPEVINE_ALERTS=1 $(GO) test -count=1 -run '^TestAlerts' -v -timeout 6m ./chaos/fleet

# The partition has a network of its own; root is not needed where users may have namespaces.
live: build ## eight real routers: spread, cost, kill, agreement, engines that die, hot prefixes, clients' limits and shares, partition, loss, memory; an hour (LIVE=short: 7 minutes, wider limits)
	GRAPEVINE=$(CURDIR)/$(BIN) GRAPEVINE_LIVE=1 $(GO) test $(if $(filter short,$(LIVE)),-short) -count=1 -run '^TestLive' -v -timeout 80m ./chaos/fleet

# The scenarios that together exercise every promise, ten minutes of them; the others with SCENARIOS=all (20 minutes). Root is not needed
# where users may have namespaces, and what cannot be done is named as skipped.
SCENARIOS ?= router-loss leader-loss rolling-restart partition-heal asymmetric-partition engine-loss full-disk nlb-drain packet-loss everything-at-once
SEED      ?= 1

chaos: build build-chaos build-newer ## real fleets broken on purpose by SEED (1), held to what they promise: out/chaos.html; and raftstore's histories (SCENARIOS=all; CHAOS=3m for each group; installs haproxy with apt if missing)
	@command -v haproxy >/dev/null || test -x /usr/sbin/haproxy || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy; }
	@mkdir -p out
	GRAPEVINE_CHAOS=$(or $(CHAOS),20s) $(GO) test $(RACE) -count=1 -v -timeout 30m -run 'TestLinearizable|TestKilledProcesses' ./raftstore
	$(LAB) chaos run $(SCENARIOS) --router $(BIN)-chaos --seed $(SEED) --newer $(BIN)-newer --html out/chaos.html

# Hit rates of half a minute say too little where others use the machine, too, and a second is soon over there. The three tests need programs that are not shipped.
chaos-short: build build-chaos build-newer ## two of the scenarios without what a busy machine cannot measure, a stepped clock, disks that fail and an upgrade: three minutes
	@mkdir -p out
	GRAPEVINE_INSTRUMENTED=$(CURDIR)/$(BIN)-chaos GRAPEVINE_NEWER=$(CURDIR)/$(BIN)-newer $(GO) test -count=1 -v -timeout 4m -run '^(TestStepClock|TestDisks|TestUpgrade)$$' ./chaos/fleet
	$(LAB) chaos run router-loss membership-churn --seed $(SEED) --leave-out hit-rate-recovers --leave-out departures-end --html out/chaos.html

# A fleet for each defect of chaos/plant, four at a time, and one without any that keeps every promise.
chaos-planted: build-chaos ## that the harness finds what is wrong: a planted defect for every promise, in four minutes (PLANT=short: without hit rates)
	GRAPEVINE_PLANTED=$(CURDIR)/$(BIN)-chaos $(GO) test $(if $(filter short,$(PLANT)),-short) -count=1 -v -parallel 4 -timeout 8m -run '^TestPlanted$$' ./chaos/scenario

# Ten minutes or so of one processor; a seed that fails prints how it is repeated. Without the race detector: it would make the same runs 5 to 25
# times as dear, and the first few seeds run under it in test.
chaos-virtual: ## fleets, routers, queues and state machines in virtual time over SEEDS seeds (5000) beginning with FROM (1)
	@echo "seeds from $(or $(FROM),1): $(or $(SEEDS),5000) of routers, queues (200 requests each) and state machines, an 8th of them of fleets, a 20th of groups"
	GRAPEVINE_TEST_SEEDS=$(or $(SEEDS),5000) GRAPEVINE_TEST_FROM=$(or $(FROM),1) $(GO) test -count=1 -timeout 3h -run '^TestSeeds' ./gossip ./proxy ./proxy/policy ./raftstore

lint: ## gofmt, vet, staticcheck, golangci-lint
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet $(PKGS)
	$(GO) run $(STATICCHECK) -checks 'all,-ST*,-QF*' $(PKGS)
	$(GO) run $(GOLANGCI) run $(PKGS)

sim: build ## policies side by side in virtual time on a generated workload
	$(LAB) simulate --workload agentic --policy prefix,prefix-hash,least-request,session,round-robin --seed 1

herd traces: ## every policy on the traces in TRACES: docs/herd.md, over what nodes share and how late; docs/traces.md, at three loads (hours of one processor; goes on where it stopped; GRID=-again=prefix: only prefix anew)
	$(GO) run ./chaos/fleetsim/herd -traces '$(TRACES)' -grid $@ $(GRID)

mechanisms: ## what each mechanism of the default policy does, found by leaving it out in DRAWS (50) fleets of the family; half an hour; goes on where it stopped (ABLATE=-constants: constants doubled and halved instead, hours; ABLATE='-strategy weighted': its scorers)
	$(GO) run ./chaos/ablate -draws $(or $(DRAWS),50) -seed $(SEED) $(ABLATE)

demo: build ## the whole thing on this machine: a fleet, live traffic, a router killed; in under two minutes
	$(LAB) demo

figures: build ## lines, words, the size of the router, and how the files of each package refer to each other
	$(GO) run ./chaos/figures -binary $(BIN)

check: lint test ## what every commit passes

GO      ?= go
BIN     := bin/grapevine

.PHONY: build test
build:
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/grapevine

test:
	$(GO) test -race -shuffle=on ./...

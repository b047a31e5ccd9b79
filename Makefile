# Everything that is built, run and checked here. `make` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10m
export GOTOOLCHAIN := local

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/relay
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/relay ./cmd/relay

.PHONY: demo
demo: build ## Federate two sample clusters, show the result, and run until interrupted
	RELAY=bin/relay hack/demo.sh

.PHONY: test
test: unit e2e ## Run all tests

.PHONY: unit
unit: ## Run the tests of the relay itself, with the race detector
	go test -race -timeout 15m ./...

.PHONY: e2e
e2e: build istiod ## Run the relay between real istiods
	cd e2e && go test -count=1 -timeout 15m ./...

# They are tools of the e2e module, so that the version is in its go.mod.
.PHONY: istiod
istiod:
	cd e2e && go build -o bin/ istio.io/istio/pilot/cmd/pilot-discovery istio.io/istio/istioctl/cmd/istioctl

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10m)
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg; \
	  done; \
	done

.PHONY: bench
bench: ## Run the micro-benchmarks
	go test -run '^$$' -bench . -benchmem ./...

bin/golangci-lint: tools/lint/go.mod
	cd tools/lint && go build -o ../../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: bin/golangci-lint ## Check the code (builds the linter once: some minutes)
	bin/golangci-lint run ./...

.PHONY: fmt
fmt: bin/golangci-lint ## Format the code
	bin/golangci-lint fmt ./...

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin e2e/bin

# Everything that is built, run and checked here. `make` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10m
CHECKS ?= 1000
# DRAWING lists the packages with tests that draw cases at random.
DRAWING = go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $(PKG) | awk '/pgregory.net\/rapid/ {print $$1}'
# RACE=-race looks for data races, too, and needs a C compiler. CI sets it.
RACE ?=
# With it, tests run on one processor: the timers of a synctest bubble share one race context, and where two
# threads use it at once the detector itself crashes (golang/go#78156). It finds races by what orders two
# accesses, not by seeing them at the same time. Tests meet two threads, and have memory measured, without it.
RACING = $(if $(RACE),$(RACE) -cpu 1)
# What unit tests: PKG=./upstreams/... for a part.
PKG ?= ./...
# Attacks on a running relay are a ring of their own.
UNIT = go list $(PKG) | grep -v '/attacks$$'
export GOTOOLCHAIN := local

# The relay is built from its own go.mod, and e2e and tools pin other worlds. go.work has the rest.
build unit e2e ui-test ui-screenshots oracle examples istiod newest kube nacos vulncheck bin/golangci-lint: export GOWORK := off

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/relay
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/relay ./cmd/relay

.PHONY: fips
fips: export GOFIPS140 := v1.0.0
fips: ## Build bin/relay-fips with the FIPS 140-3 module of Go, and check its handshakes
	CGO_ENABLED=0 GOWORK=off go build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION)" -o bin/relay-fips ./cmd/relay
	bin/relay-fips version
	go test -count=1 -run '^TestHandshakesAreApprovedOnes_FIPS140$$' ./cmd/relay

.PHONY: demo
demo: build ## Federate two sample clusters, show the result, and run until interrupted
	RELAY=bin/relay hack/demo.sh

.PHONY: demo-story
demo-story: build ## Break the demo in two minutes and repair it (DEMO_PAUSE=0: without pauses)
	RELAY=bin/relay hack/demo-story.sh

# Three rings: test needs nothing but Go and a browser, e2e has real istiods and API servers, and the
# third ring breaks, attacks and measures (docs/testing.md).
.PHONY: test
test: unit ui-test ## Run the tests of the relay, with fakes around it and a browser (RACE=-race: look for data races)

# Tests that draw cases draw the same ones each time: what fails is what has changed. "make search" draws others.
# The flags are those of build, so that what both need is compiled once.
.PHONY: unit
unit: export CGO_ENABLED := $(if $(RACE),1,0)
unit: ## Run the tests of the relay without the browser (PKG=./upstreams/...: of a part)
	drawing=$$($(DRAWING)); others=$$($(UNIT) | grep -vxF "$$drawing" || true); \
	$${others:+go test $(RACING) -trimpath -timeout 30m $$others}; \
	$${drawing:+go test $(RACING) -trimpath -timeout 30m $$drawing -rapid.seed=1}

.PHONY: cover
cover: ## Show which share of the statements the tests of "make unit" run, by package
	hack/cover.sh

.PHONY: mutants
mutants: ## Break 300 places, one at a time, and count what the tests without sockets notice
	go run ./tools/mutants

.PHONY: stress
stress: ## Run the tests again and again beside a busy machine (hours; hack/stress.sh tells how to do a part)
	hack/stress.sh

.PHONY: search
search: ## Run the tests that draw cases with CHECKS (1,000) new ones each (PKG=./upstreams/...: of a part)
	go test -timeout 2h -count=1 $$($(DRAWING)) -rapid.checks=$(CHECKS)

.PHONY: ui-test
ui-test: build chromium ## Run the tests of the web page, in a real browser
	cd admin/uitest && go test -count=1 -timeout 10m .

.PHONY: ui-screenshots
ui-screenshots: build chromium ## Take the pictures of the web page anew
	cd admin/uitest && go test -count=1 -timeout 10m -run '^TestThePageAnswersSixQuestions$$' . -screenshots ../../docs/img

.PHONY: chromium
chromium:
	@if ! command -v chromium >/dev/null; then \
	  if [[ $$(id -u) != 0 ]]; then echo "the tests of the web page need chromium; as root: apt-get install chromium" >&2; exit 1; fi; \
	  { apt-get install -y --no-install-recommends chromium || { apt-get update && apt-get install -y --no-install-recommends chromium; }; } >/dev/null || \
	  { echo "chromium can not be installed: apt-get install chromium" >&2; exit 1; }; \
	fi

# The files of others that the web page and its tests have. SHA256SUMS pins them.
.PHONY: ui-vendor
ui-vendor: ## Fetch the files of others in the web page anew (needs npm)
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	fetch() { (cd "$$work" && tar -xzf "$$(npm pack --silent "$$1")" && mv package "$$2"); }; \
	fetch idiomorph@0.8.0 idiomorph; fetch axe-core@4.14.1 axe; \
	mkdir "$$work/ui" "$$work/tests"; \
	cp "$$work"/idiomorph/dist/idiomorph.min.js admin/ui/vendor/SHA256SUMS "$$work/ui"; \
	cp "$$work/idiomorph/LICENSE" "$$work/ui/idiomorph.LICENSE"; \
	cp "$$work"/axe/{axe.min.js,LICENSE} admin/uitest/axe/SHA256SUMS "$$work/tests"; \
	for fetched in "$$work/ui" "$$work/tests"; do (cd "$$fetched" && sha256sum --strict -c SHA256SUMS); done; \
	cp "$$work"/ui/* admin/ui/vendor/; cp "$$work"/tests/* admin/uitest/axe/

.PHONY: e2e
e2e: build istiod newest kube nacos chart-test ## Run the relay between real istiods and API servers, the examples and the chart
	cd e2e && go test -count=1 -parallel 4 -timeout 30m ./...
	cd e2e/newest && go test -count=1 -timeout 10m ./...
	cd e2e && ISTIODS=newest go test -count=1 -parallel 4 -timeout 30m -run '^($(NEWEST))$$' .

# What the tests with the oldest istiod show of Envoys' configuration is shown with the newest, too.
NEWEST = $(subst $(space),|,$(strip TestOracleFixedSet_C23 TestOracleRandomSets_C23 TestBookinfosRoutesNameClustersThatExist_C23 \
	TestAPIServersAreFederatedForEnvoys_C23 TestTwoIstiodsArriveInAThird TestRelayBehindRelay TestKubernetesIsServedAsAnIstiodServesIt_K10 \
	TestServicesOfAnAPIServerAreThoseOfItsIstiod TestRandomServicesAreThoseOfTheirIstiod TestIngressesThatShareAHostWithTLSServeIt))
space := $(subst ,, )

ORACLE_SETS ?= 300
KUBERNETES_OBJECTS ?= 300
KUBERNETES_CHANGES ?= 1000
SERVICES_WORLDS ?= 100
.PHONY: oracle
oracle: build istiod kube ## Compare what istiods make of configs, as files, through relays and in API servers, and of Ingresses, for 300 random sets
	cd e2e && KUBERNETES_OBJECTS=$(KUBERNETES_OBJECTS) KUBERNETES_CHANGES=$(KUBERNETES_CHANGES) go test -count=1 -timeout 30m -v -run '^TestKubernetesIsServed|^TestAPIServersAreFederatedForEnvoys' .
	cd e2e && SERVICES_WORLDS=$(SERVICES_WORLDS) go test -count=1 -timeout 30m -v -run '^TestRandomServices|^TestServicesOfAnAPIServer' .
	cd e2e && ORACLE_SETS=$(ORACLE_SETS) go test -count=1 -timeout 60m -v -run '^Test(Oracle|Bookinfo)' .
	cd e2e && ORACLE_SETS=$(ORACLE_SETS) go test -count=1 -timeout 60m ./ingress

.PHONY: examples
examples: build istiod newest kube nacos ## Run the examples with real istiods
	cd e2e && go test -count=1 -timeout 30m -v -run '^TestExample' ./...

# istiod and istioctl are tools of the e2e module, so that their version is in its go.mod.
.PHONY: istiod
istiod:
	cd e2e && go build -o bin/ tool

# The newest istiod that is known, of a module of its own. The build takes some minutes once.
.PHONY: newest
newest:
	cd e2e/newest && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../bin/newest/ tool

# Kubernetes' API server and etcd, for istiods with services. The build takes some minutes
# once. etcd's main package is called server, so its binary gets its own name.
.PHONY: kube
kube:
	cd tools/kube && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../e2e/bin/ k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl
	cd tools/kube && CGO_ENABLED=0 go build -ldflags '-s -w' -o ../../e2e/bin/etcd go.etcd.io/etcd/server/v3

# A server that behaves as Nacos and Higress' controller do. Its module has other versions than e2e.
.PHONY: nacos
nacos:
	CGO_ENABLED=0 go build -o e2e/bin/ ./examples/registry/nacos

# tools/proto pins the generator, and needs no protoc.
.PHONY: generate
generate: ## Generate the Go code of .proto files
	cd tools/proto && GOWORK=off go run . ../../state/local/statepb/state.proto

# A finding is kept as it is found: minimizing one of a large input takes longer than
# finding it.
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10m)
	@pkgs=$$(go list ./...); \
	for pkg in $$pkgs; do \
	  targets=$$(go test -list '^Fuzz' $$pkg); \
	  for target in $$(grep '^Fuzz' <<<"$$targets" || true); do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg; \
	  done; \
	done

BENCHFLAGS ?=
.PHONY: bench
bench: build istiod kube bench-build ## Compare the relay with other ways to relay (an hour; BENCHFLAGS=-h tells how to do less)
	cd bench && bin/bench $(BENCHFLAGS)

.PHONY: bench-baseline
bench-baseline: bench-build ## Make the results of the last "make bench" the baseline, and write them into docs
	cp bench/out/results.json bench/baseline/results.json
	cd bench && bin/bench -out baseline -docs ../docs

.PHONY: bench-docs
bench-docs: bench-build ## Write the figures in docs anew, from bench/baseline
	cd bench && bin/bench -out baseline -docs ../docs

.PHONY: bench-build
bench-build:
	cd bench && CGO_ENABLED=0 go build -o bin/ . ./floor ./linear ./watch ./apply

.PHONY: bench-test
bench-test: build kube bench-build ## Run the benchmark's own tests, with small loads
	cd bench && go test -count=1 -parallel 8 -timeout 10m ./...

CHAOSFLAGS ?= --for 4m
.PHONY: chaos
chaos: kube chaos-build ## Run the relay through faults at random (four minutes; CHAOSFLAGS=-h tells more)
	cd chaos && bin/chaos $(CHAOSFLAGS)

.PHONY: chaos-long
chaos-long: kube chaos-build ## The same for an hour or so, with 1,000 kills and a million changes
	cd chaos && bin/chaos --scenario all --for 40m $(CHAOSFLAGS)

.PHONY: chaos-build
chaos-build:
	cd chaos && CGO_ENABLED=0 go build -o bin/ . && bin/chaos --prepare

.PHONY: chaos-test
chaos-test: kube chaos-build ## Run the chaos suite's own tests: relays that are broken on purpose are caught
	cd chaos && go test -count=1 -parallel 4 -timeout 20m ./...

ATTACKFLAGS ?= -v -long
.PHONY: attacks
attacks: ## Attack the relay, once and by fifty at once, and show what that costs (ten minutes; ATTACKFLAGS= for less)
	go test -count=1 -timeout 60m ./attacks $(ATTACKFLAGS)

LEAK_WORLDS ?= 10000
.PHONY: leaks
leaks: ## Look in ten thousand random worlds for what a view leaks, and in two hundred over gRPC (two minutes)
	go test -count=1 -timeout 30m -run 'LeakNothing$$' -v ./downstream -leak.seed 0 -leak.worlds $(LEAK_WORLDS) -leak.streams 200

# All micro-benchmarks of the relay.
# MoveAllClients is left out: one turn of it takes seconds.
MICROTIME ?= 100ms
MICROCOUNT ?= 6
MICROBENCH = go test -run '^$$' -bench . -benchmem -skip MoveAllClients -benchtime $(MICROTIME) -count $(MICROCOUNT) \
	$$(git grep -l '^func Benchmark' -- '*_test.go' ':!bench' ':!chaos' ':!e2e' ':!tools' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
.PHONY: microbench
microbench: ## Run the micro-benchmarks and compare them with bench/baseline
	@mkdir -p bench/out
	$(MICROBENCH) | tee bench/out/micro.txt
	cd bench && go tool benchstat baseline/micro.txt out/micro.txt

.PHONY: baseline
baseline: ## Make the micro-benchmarks of this machine the baseline
	@mkdir -p bench/baseline
	$(MICROBENCH) > bench/baseline/micro.txt.new
	mv bench/baseline/micro.txt.new bench/baseline/micro.txt
	$(MAKE) bench-docs

bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	cd tools/lint && go build -o ../../bin/ tool
	@touch $@

# govulncheck is built where the module proxy has all that it needs, and asks vuln.go.dev. Where
# one of the two can not be had it says so and does not fail; a vulnerability does (exit code 3).
VULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in what the relay calls, where govulncheck can be had
	@tool=$$(command -v govulncheck || true); \
	if [[ -z "$$tool" ]]; then \
	  mkdir -p bin; GOBIN="$(CURDIR)/bin" GOFLAGS=-mod=mod go install $(VULNCHECK) >bin/.vulncheck.log 2>&1 && tool=bin/govulncheck || \
	  { echo "vulncheck: NOT RUN: govulncheck can not be built here: $$(tail -n 1 bin/.vulncheck.log)" >&2; exit 0; }; \
	fi; \
	code=0; "$$tool" ./... || code=$$?; \
	if [[ $$code == 3 ]]; then exit 3; fi; \
	if [[ $$code != 0 ]]; then echo "vulncheck: NOT RUN: govulncheck failed with exit code $$code, and found nothing" >&2; fi

# Each module is linted with the versions that it pins; those that go.work joins with the root, with the root's.
MODULES = git ls-files '*go.mod' | xargs -n 1 dirname
.PHONY: lint
lint: bin/golangci-lint ## Check the code of all modules, and that they are tidy (builds the linter once: some minutes)
	@for module in $$($(MODULES)); do \
	  case $$module in bench | chaos) work= ;; *) work=off ;; esac; \
	  echo "lint: $$module"; \
	  (cd $$module && GOWORK=off go mod tidy -diff); \
	  [[ -n $$(git ls-files "$$module/*.go") ]] || continue; \
	  (cd $$module && GOWORK=$$work $(CURDIR)/bin/golangci-lint run --config $(CURDIR)/.golangci.yml ./...); \
	done

.PHONY: cross
cross: ## Build the relay for the other platforms that are published
	for target in linux/arm64 darwin/arm64; do \
	  CGO_ENABLED=0 GOWORK=off GOOS=$${target%/*} GOARCH=$${target#*/} go build -trimpath -buildvcs=false -o /dev/null ./cmd/relay; \
	done

.PHONY: fmt
fmt: bin/golangci-lint ## Format the code
	bin/golangci-lint fmt ./...

# What takes hours, and finds what the rings do not look for.
.PHONY: nightly
nightly: ## Fuzz, search, leak, break and stress for hours, build twice, with FIPS
	$(MAKE) fuzz FUZZTIME=2m
	$(MAKE) search leaks oracle rules-test dist-test fips chaos-long stress

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist e2e/bin e2e/out bench/bin bench/out chaos/bin

# The Helm chart. The first build of Helm takes some minutes.
manifests chart-test: export GOWORK := off

.PHONY: manifests
manifests: ## Render the chart into deploy/kubernetes, and its examples for the tests
	cd tools/chart && go run . manifests
	cd tools/chart && go test -count=1 -run '^TestRenderingsAreUpToDate$$' . -update

.PHONY: chart-test
chart-test: kube ## Test the Helm chart and the kustomizations, on a real API server
	cd tools/chart && go test -count=1 -timeout 10m ./...

# Prometheus is a module of its own. It takes a minute to build once.
.PHONY: rules-test
rules-test: ## Show series to the alerts, the recording rules and the dashboard (not part of test)
	cd tools/promtest && GOWORK=off go test -count=1 -timeout 10m ./...

.PHONY: dashboard
dashboard: ## Write the Grafana dashboard anew, from tools/promtest/dashboard.go
	cd tools/promtest && GOWORK=off go run .

# What is published. The chart is built with Helm, whose first build takes some minutes.
MAINTAINER ?= unpublished build <root@localhost>
dist dist-test: export GOWORK := off

.PHONY: dist
dist: ## Build archives, packages, image, chart, SBOMs and checksums into dist/
	rm -rf dist
	cd tools/dist && go run . -out ../../dist -version "$(VERSION)" -maintainer "$(MAINTAINER)"

.PHONY: dist-test
dist-test: ## Build them twice and compare; install and start what can be (not part of test)
	cd tools/dist && go test -count=1 -timeout 30m .

.PHONY: docs
docs: ## Write docs/cli.md anew, from the commands
	go test -count=1 -run '^TestTheCommandReferenceIsThatOfTheCommands$$' ./cmd/relay -update

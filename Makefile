# Two commands do all the set-up on a fresh machine: make up, make test.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# All clones of a user share the tests' tools. What tests run as other users must lie where
# those may pass, so root's lie outside of its home.
TOOLS   := $(or $(TENDRIL_TOOLS),$(if $(filter 0,$(shell id -u)),/var/cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))/tendril-tools)
GOLANGCI_VERSION := v2.12.0

export PATH := $(TOOLS):$(PATH)

# Everything is compiled as the programs ship: what one target has compiled the others need not.
# The race detector alone needs C.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)
race := CGO_ENABLED=1 go test -race -count=1

.PHONY: help
help: ## List what make can do
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: up
up: build ## Run all of Tendril on this machine: Postgres, console, agent (Ctrl-C ends it)
	@exec bin/trellis up $(ARGS)

.PHONY: demo
demo: build ## Deploy the hello template once, watch it, and stop
	@exec bin/trellis demo $(ARGS)

.PHONY: build
build: ## Build bin/tendril and bin/trellis
	@[ -x bin/trellis ] || echo 'Building bin/tendril and bin/trellis, which takes some minutes the first time'
	@go build -ldflags '-s -w' -o bin/ ./cmd/tendril ./cmd/tendril-dispatcher ./cmd/trellis

# Any of these may be given: make images REGISTRY=registry.example/tendril BASE_IMAGE=…
DOCKER   ?= $(firstword $(wildcard /usr/bin/docker) docker)
REGISTRY ?= ghcr.io/tendril-run
VERSION  ?= $(shell DIRTY=1 scripts/version.sh)
REVISION ?= $(shell git rev-parse HEAD)
IMAGES   := tendril tendril-slim trellis

.PHONY: images
images: $(IMAGES:%=image-%) ## Build the images REGISTRY/tendril:VERSION, …:VERSION-slim and …/trellis:VERSION; GO_IMAGE, BASE_IMAGE, TERRAFORM_IMAGE say from what

# DOCKER_FLAGS is for what your network asks for, such as --network=host or --secret. CONTEXT is
# the folder with the Dockerfile.
CONTEXT ?= .
.PHONY: $(IMAGES:%=image-%)
$(IMAGES:%=image-%): image-%:
	@DOCKER_BUILDKIT=1 $(DOCKER) build --target $* --tag $(REGISTRY)/$(*:-slim=):$(VERSION)$(if $(findstring slim,$*),-slim) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) \
	  $(foreach name,GO_IMAGE BASE_IMAGE TERRAFORM_IMAGE,$(if $($(name)),--build-arg $(name)=$($(name)))) $(DOCKER_FLAGS) $(CONTEXT)

.PHONY: test-images
test-images: ## Make what the tests build images from, on a machine that can pull none
	@DOCKER='$(DOCKER)' scripts/test-images.sh $(TOOLS)

# How long one package's tests may take: so much on an idle machine of two cores, and
# more as this one is slower. It ends what hangs; tests have limits of their own.
patience = $$(go run ./internal/testkit/patience/measure $(1))

.PHONY: test
test: ## Run every test, and first install what they need; RACE=all: with the race detector everywhere; FAULTS=all: each fault and alteration of which else some are drawn
	@RACE='$(RACE)' FAULTS='$(FAULTS)' TESTARGS='$(TESTARGS)' scripts/test.sh $(TOOLS)

.PHONY: quick
quick: ## Run the tests of what changed since BASE (the upstream's commit, else HEAD) and of what imports it: no browser, no container
	@TESTARGS='$(TESTARGS)' scripts/quick.sh $(BASE)

.PHONY: screenshots
screenshots: deps ## Keep a picture of each page of the console in dist/screenshots, in both themes and at two widths
	@TENDRIL_TEST_ARTIFACTS='$(CURDIR)/dist/screenshots' $(race) -timeout $(call patience,30m) $(TESTARGS) ./e2e/console

.PHONY: chaos
chaos: deps ## Break a running system in every way there is, some minutes long, and count what is left; QUEUE=postgres, pgbouncer, https or key: how agents reach the queue, which else is drawn; TENDRIL_SEED draws the same faults, TENDRIL_CHAOS_TIME so long (30m)
	@RAPID_CHECKS=300 $(race) -timeout $(call patience,30m) -run 'TestModel|TestEverything|TestArchiveModel|TestReaders' ./sql
	@TENDRIL_TEST_FAULTS=all $(race) -timeout $(call patience,90m) -run 'TestKilled|TestCommandsAround|TestEveryColumnAltered|TestCutAt|TestHostileFiles|TestInitServes|TestDamage' ./internal/executor ./internal/pool/... ./internal/providers ./internal/templatefile ./e2e
	@TENDRIL_TEST_FAULTS=all TENDRIL_TEST_QUEUE=$(QUEUE) TENDRIL_CHAOS=full $(race) -timeout $(call patience,90m) -v $(TESTARGS) ./e2e/chaos > >(grep -aE '^(---|ok|FAIL|chaos:)|_test.go:')

# KUBE_TESTS=short is what .ci/run takes: the chart on a node, with an upgrade, and the worst days of a run.
KUBE_SHORT := TestChartRunsJobs|TestDispatcherIsKilled|TestBadDays|TestRunnersByHTTPS|TestNamespaceShowsNoSecret|TestHostileTemplateInAPod
.PHONY: e2e-kube
e2e-kube: deps kube-deps ## Install the charts on a real Kubernetes API server, and carry runs out as Jobs of a real node, as root; builds those first, once; KUBE_TESTS=short: some minutes less
	@$(if $(filter short,$(KUBE_TESTS)),,$(race) -tags kube -timeout $(call patience,30m) $(TESTARGS) ./e2e/kube)
	@CGO_ENABLED=0 go test -tags kube -timeout $(call patience,20m) $(if $(filter short,$(KUBE_TESTS)),-run '^($(KUBE_SHORT))$$') $(TESTARGS) ./e2e/kubejobs

.PHONY: kube-deps
kube-deps: deps ## Install what e2e-kube needs
	@scripts/kube-deps.sh $(TOOLS)

# VM_TESTS=all also starts a whole Debian, which takes minutes where processors are emulated.
# VM_TESTS=short is what .ci/run takes: a machine's life, its address, many at once, foreign ones.
VM_SHORT := TestCreateGivesARunningMachineWithItsAddress|TestLifeOfAMachine|TestMachinesAtTheSameTime|TestListAndCheck|TestForeignDomainsAreNeverTouched
.PHONY: e2e-vm
e2e-vm: ## Make virtual machines on real libvirt daemons, as root, and first install those; VM_TESTS=all: a Debian with cloud-init too; short: some minutes less
	@scripts/vm-deps.sh $(TOOLS) $(if $(filter short,$(VM_TESTS)),,provider) $(if $(filter all,$(VM_TESTS)),debian)
	@TENDRIL_TEST_VM=$(VM_TESTS) $(race) -tags vm -p 1 -timeout $(call patience,30m) $(if $(filter short,$(VM_TESTS)),-run '^($(VM_SHORT))$$') $(TESTARGS) ./internal/pool/libvirt $(if $(filter short,$(VM_TESTS)),,./e2e/vm)
	@TENDRIL_TEST_VM=$(VM_TESTS) $(race) -tags vm -timeout $(call patience,30m) -run '^TestReal' $(TESTARGS) ./internal/pool/proxmox

# METAL_TESTS=short is what .ci/run takes, some minutes long: a machine's life, others' servers,
# crashes, ten at once, a run that is set down, document 002 by REST, rescue and rebuild.
METAL_SHORT := TestLifeOfAMachine|TestTakenByOthers|TestForeignServersAreNeverTouched|TestAdoptedAfterACrash|TestThirtyAtOnce|TestBareMetalDetaches|TestServerBehindABMC|TestServersByTheAPI|TestServersAreEnrolled|TestRescue|TestRebuild|TestBareMetalIsRescued
metal = $(if $(filter short,$(METAL_TESTS)),go test -count=1,$(race))
# And of the BMCs themselves; TestServerBehindABMC has a server deployed by one.
BMC_SHORT := TestSushyReadsAll
.PHONY: e2e-metal
e2e-metal: deps metal-deps metal-guest ## Make machines of the servers of a real OpenStack Ironic, with fake hardware and with virtual machines behind BMCs, and first install that; METAL_TESTS=short: some minutes less
	@METAL_TESTS=$(METAL_TESTS) $(metal) -tags metal -p 1 -timeout $(call patience,20m) -run '$(if $(filter short,$(METAL_TESTS)),^($(METAL_SHORT))$$,.)' $(TESTARGS) ./internal/pool/ironic
	@METAL_TESTS=$(METAL_TESTS) $(metal) -tags metal -p 1 -timeout $(call patience,20m) -run '$(if $(filter short,$(METAL_TESTS)),^($(METAL_SHORT))$$,BareMetal)' $(TESTARGS) ./internal/executor
	@$(metal) -tags metal -timeout $(call patience,20m) $(if $(filter short,$(METAL_TESTS)),-run '^($(BMC_SHORT))$$') $(TESTARGS) ./internal/testkit/redfish
	@$(metal) -tags metal -timeout $(call patience,20m) $(if $(filter short,$(METAL_TESTS)),-run '^($(METAL_SHORT))$$') $(TESTARGS) ./e2e/metal
	@$(metal) -tags metal -timeout $(call patience,20m) -run '^TestUpWithIronic$$' $(TESTARGS) ./cmd/trellis

.PHONY: metal-guest
metal-guest: vm-deps ## Install libvirt and QEMU, and make the guest that e2e-metal deploys to them
	@scripts/metal-guest.sh $(TOOLS)

.PHONY: metal-deps
metal-deps: ## Install the OpenStack Ironic that e2e-metal starts
	@scripts/metal-deps.sh $(TOOLS)

.PHONY: vm-deps
vm-deps: ## Install libvirt and QEMU and make the image that e2e-vm and bench start
	@scripts/vm-deps.sh $(TOOLS)

.PHONY: deps
deps: ## Install what the tests need: PostgreSQL, git, Terraform, OpenTofu
	@scripts/test-deps.sh $(TOOLS)

# A cache shared by two checkouts reports the other's files, to which no exclusion and no nolint applies.
.PHONY: tools-dir
tools-dir:
	@echo '$(TOOLS)'

.PHONY: lint
lint: export GOLANGCI_LINT_CACHE := $(CURDIR)/.cache/golangci-lint
lint: $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) ## Check the code without running it, and the words that people read
	@$< run ./...
	@go test -run PlainWords ./scripts

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) ## Format the code
	@$< fmt ./...

.PHONY: bench
bench: deps $(if $(BENCH),$(if $(findstring Machines,$(BENCH)),vm-deps),vm-deps) ## Measure each figure beside its bare limit, COUNT times (5), those of BENCH (all); keeps dist/bench.txt and, for programs, dist/bench.json
	@mkdir -p dist
	@go build -o dist/figures ./e2e/bench/figures
	@{ dist/figures -environment; TENDRIL_BENCH_LOG_ROWS=$(if $(findstring Retention,$(BENCH)),10000000,1000000) go test -run '^$$' -bench '$(or $(BENCH),.)' -benchtime 1x -count $(or $(COUNT),5) -timeout $(call patience,120m) ./e2e/bench; } | tee dist/bench.txt | dist/figures -json dist/bench.json $(if $(BENCH),-some)

# What bench-check measures: the figures of e2e/bench/floor.txt.
CHECKED_ALONE := ^Benchmark(ClaimLatency|AgentIdle)$$
CHECKED_BELOW := ^Benchmark(Deploy|Fleet|LogThroughput|Claims)$$/^(warm|new|provisions=[18]|finished=1k)$$

.PHONY: bench-check
bench-check: deps ## Measure the figures that matter, a few minutes long, and fail below e2e/bench/floor.txt by more than the noise
	@mkdir -p dist
	@go build -o dist/figures ./e2e/bench/figures
	@{ go test -run '^$$' -bench '$(CHECKED_ALONE)' -benchtime 1x -count $(or $(COUNT),2) -timeout $(call patience,20m) ./e2e/bench; \
	   go test -run '^$$' -bench '$(CHECKED_BELOW)' -benchtime 1x -count $(or $(COUNT),3) -timeout $(call patience,20m) ./e2e/bench; } | tee dist/bench-check.txt | dist/figures -floor e2e/bench/floor.txt

.PHONY: bench-docs
bench-docs: ## Write the tables of dist/bench.txt into docs/PERFORMANCE.md
	@go run ./e2e/bench/figures -input dist/bench.txt -docs docs/PERFORMANCE.md

.PHONY: bench-go
bench-go: deps ## Run the packages' own benchmarks, of one function each
	@go test -run '^$$' -bench . -benchmem $$(go list ./... | grep -v /e2e)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (default 30s)
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

# PLATFORMS, DIST and DIRTY are as scripts/release.sh says: make hands them on.
.PHONY: release
release: ## Build programs, archives, charts and checksums into dist/, of VERSION (the nearest tag's)
	@scripts/release.sh

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what we call; GOVULNDB: a mirror or a copy of vuln.go.dev
	@scripts/vuln.sh

.PHONY: licenses
licenses: ## Check the licences of everything that is linked or bundled
	@go run ./scripts/licenses

.PHONY: assets
assets: ## Bundle the libraries of the console's pages again (needs npm; the result is committed)
	@cd internal/controlplane/console/vendored && npm ci --ignore-scripts --no-audit --no-fund --silent && node build.mjs

# As internal/controlplane/instance has it.
DATA_DIR := $(or $(TRELLIS_DATA_DIR),$(if $(filter 0,$(shell id -u)),/var/lib/tendril,$(or $(XDG_DATA_HOME),$(HOME)/.local/share)/tendril))

.PHONY: clean
clean: ## Remove what was built and say what is kept: the tests' tools and the data of trellis up
	@rm -rf bin dist .cache
	@echo 'Removed bin, dist and .cache.'
	@for kept in "the tests' tools, which take minutes to build and which all clones share:$(TOOLS)" 'the data of trellis up:$(DATA_DIR)'; do \
	  dir=$${kept#*:}; [ ! -e "$$dir" ] || printf 'Kept %s: %s\n  Remove it: rm -rf %q\n' "$${kept%%:*}" "$$dir" "$$dir"; \
	done

$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION):
	@echo "building golangci-lint $(GOLANGCI_VERSION), once; this takes a few minutes" >&2
	@mkdir -p $(TOOLS)
	@GOBIN=$@.$$PPID go install -ldflags '-s -w' github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $@.$$PPID/golangci-lint $@ && rmdir $@.$$PPID

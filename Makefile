# Shepherd. `make help` lists the targets.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=

BIN     ?= bin

# The Kubernetes version whose API this speaks, for what sheepctl says of itself.
KUBE    = k8s.io/component-base/version
LDFLAGS = -s -w -X $(KUBE).gitMajor=1 -X $(KUBE).gitMinor=37 -X $(KUBE).gitVersion=v1.37.2+shepherd
SUDO    = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help build test demo soak lint bench fmt install uninstall

help: ## List the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build static bin/shepherd, bin/sheepctl and bin/shepherd-shim
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/shepherd ./cmd/sheepctl ./cmd/shepherd-shim

test: ## Set up what the tests need and run all tiers (at most ten minutes)
	@GO=$(GO) scripts/test

demo: ## Show a cluster of five machines that loses its leader and its power
	@GO=$(GO) scripts/demo.sh

soak: ## Run what takes longer: many seeds, many cycles, fuzzing by the clock
	@GO=$(GO) scripts/soak

lint: ## Check formatting, vet, staticcheck and the import edges
	@GO=$(GO) scripts/lint

bench: ## Measure, with peers in the same run
	@GO=$(GO) scripts/bench

fmt: ## Format the code
	gofmt -w $$(git ls-files '*.go')

install: build ## Install programs and systemd units under PREFIX (default /usr/local)
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' $(SUDO) scripts/install

uninstall: ## Remove what install put in place; data stays
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' $(SUDO) scripts/uninstall

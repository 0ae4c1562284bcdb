.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python
# skirret_local is not in the wheel.
export PYTHONPATH := $(CURDIR)/e2e
CACHE := $(or $(SKIRRET_CACHE),.cache)
MODEL := $(CACHE)/models/smollm2
CONTEXT ?=
NODES ?= 1

# The set-up runs under the system's Python: it makes the environment the rest runs in.
SETUP := python3 -m skirret_local.setup
LOCAL := $(PY) -m skirret_local

##@ The two commands

.PHONY: demo
demo: $(if $(CONTEXT),environment,setup) model ## Set up everything, serve a model on a real Kubernetes, answer a batch
	@$(PY) -m skirret_local.demo $(if $(CONTEXT),--context $(CONTEXT))

.PHONY: test
test: setup model ## Set up everything and pass all tests, unit to end-to-end
	@$(PY) -m skirret_local.suites lint unit contract batch e2e

##@ Develop

.PHONY: setup
setup: ## Make .venv and build everything the project needs
	@$(SETUP)

.PHONY: environment
environment: ## Make .venv only: no root, no Go
	@$(SETUP) --no-cluster

.PHONY: fmt
fmt: ## Format the code
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix -q .

.PHONY: lint
lint: ## ruff and the import contracts
	@$(PY) -m ruff format --check -q . && $(PY) -m ruff check -q . && .venv/bin/lint-imports

.PHONY: types
types: ## mypy, strict
	@$(PY) -m mypy

.PHONY: test-unit
test-unit: setup model ## The tests that need no cluster and no store
	@$(PY) -m skirret_local.suites unit

##@ Run

.PHONY: serve
serve: environment model ## Serve the small model in one process: no Kubernetes, no root
	@$(PY) -m skirret_server serve $(MODEL) --served-model-name smollm2 --max-total-tokens 32768 $(FLAGS)

.PHONY: model
model: environment ## Make the test model; prints its folder as the last line
	@$(PY) -m skirret_server.smollm2 $(MODEL)

.PHONY: up
up: setup ## Start the local Kubernetes
	@$(LOCAL) up --nodes $(NODES)

.PHONY: down
down: ## Stop the local Kubernetes and leave nothing behind
	@if [ -x $(PY) ]; then $(LOCAL) down; else python3 -m skirret_local down; fi

##@ Generate

.PHONY: generate
generate: ## Write the CRDs, the parser's tables in the documents and the golden files anew
	@$(PY) -m skirret_api.crd
	@$(PY) -m skirret_server.api.reference
	@UPDATE_GOLDEN=1 $(PY) -m pytest -q tests/chart tests/operator

.PHONY: check-generated
check-generated: ## Fail if a generated file is stale
	@$(PY) -m skirret_api.crd --check
	@$(PY) -m skirret_server.api.reference --check

##@ Prove

.PHONY: e2e
e2e: setup model ## The end-to-end tests, on the local Kubernetes
	@$(PY) -m skirret_local.suites e2e

.PHONY: e2e-full
e2e-full: setup model ## The end-to-end tests at full length
	@SKIRRET_FULL=1 $(PY) -m skirret_local.suites e2e-full

.PHONY: bench
bench: environment model ## Measure the server
	@$(PY) benchmarks/surface.py
	@$(PY) benchmarks/bench.py

.PHONY: bench-gateway
bench-gateway: environment ## Measure what the gateway adds, and peers with PEERS=FOLDER (benchmarks/peers/setup_gateways.sh)
	@$(PY) benchmarks/gateway.py --write $(if $(PEERS),--peers $(PEERS))

.PHONY: bench-fleet
bench-fleet: environment ## Simulate fleets to compare the gateway's strategies; writes benchmarks/results
	@$(PY) benchmarks/fleet.py --write

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_-]+:.*##/ {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

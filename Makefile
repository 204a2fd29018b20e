# The same targets serve people and CI. Everything runs through .venv, which `setup` makes from
# pinned requirements; paths are relative, so a checkout may lie under a path with spaces.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1

# What `make test` leaves out; `make test-full` runs it too: the agent programs are installed first,
# Docker and a GPU are used where they are. Tests on a GPU are a session of their own: from every
# other one the GPUs are hidden.
DEFAULT_TESTS := not slow and not docker and not gpu
HARNESSES := claude-code codex mini-swe-agent

.PHONY: help setup install harness sglang demo compare test test-full test-engines test-sglang test-gpu lint format imports types check bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## environments from pinned requirements, cached outside the checkout
	@"$(PYTHON)" scripts/setup.py

install: setup  ## the same as setup

harness: setup  ## an agent program beside the quickstart's: HARNESS=claude-code|codex|mini-swe-agent
	@"$(PYTHON)" scripts/harness.py $(HARNESS)

sglang: setup  ## SGLang, to serve small models on a CPU: 3 GB, for `pytest -m sglang`
	@.venv/bin/gyre engines install sglang

demo: setup  ## train the quickstart's policy from start to report [POLICY=async|colocate|gyre]
	@$(if $(HARNESS),"$(PYTHON)" scripts/harness.py $(HARNESS))
	@.venv/bin/gyre demo $(if $(HARNESS),--example examples/$(HARNESS)) $(if $(SEED),--seed $(SEED)) $(if $(POLICY),--policy $(POLICY))

compare: setup  ## one job under each policy, on emulated cells: needs a quiet machine
	@$(PY) examples/policies/compare.py

test: setup  ## the default test suite
	@$(PY) -m pytest -m "$(DEFAULT_TESTS)" $(ARGS)

test-full: setup  ## every test, with the agent programs, installed first; then as `make test-gpu`
	@"$(PYTHON)" scripts/harness.py $(HARNESSES)
	@$(PY) -m pytest -m "not gpu" $(ARGS)
	@$(PY) scripts/test_gpu.py

test-gpu: setup  ## on a GPU, in 8 minutes: SGLang, a step, a switch, kernels, NCCL; one line without
	@$(PY) scripts/test_gpu.py $(ARGS)

test-engines: sglang  ## CI's second stage: the engines' contract and one whole job on the real SGLang
	@$(PY) -m pytest -m sglang tests/contract tests/e2e $(ARGS)

test-sglang: sglang  ## the same, and the proxy over the real SGLang
	@$(PY) -m pytest -m sglang $(ARGS)

lint: setup  ## ruff
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: setup  ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: setup  ## mypy --strict
	@$(PY) -m mypy

imports: setup  ## the layers of the packages (.importlinter)
	@$(PY) scripts/lint_imports.py

check: lint types imports test  ## all of the above

bench: setup  ## the benchmarks in tests/bench, as one table
	@mkdir -p out/bench
	@for file in tests/bench/bench_*.py; do echo "bench: $$file"; $(PY) "$$file"; done
	@.venv/bin/gyre bench

clean:  ## the environment, caches and results of this checkout; a stack's state stays
	@rm -rf .venv .venv.lock out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

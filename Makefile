PYTHON ?= python3

BIN := .venv/bin
# Tests start hundreds of programs: without bytecode on disk each would compile its modules again.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip would compile all modules of all packages, one after another: over a minute, for a few that are imported.
INSTALL := $(PIP) install --no-compile -c constraints.txt
RUN := $(BIN)/python -m
TORCH := $(shell sed -n 's/^torch==/&/p' constraints.txt)
MODERN := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
JOBS ?= 2
PYTEST := $(RUN) pytest -q -n $(JOBS)
# All tests of a file run on one worker, so that their shared fixtures are built once.
BY_FILE := --dist loadfile --no-loadscope-reorder
# `make test-touched` compares with this: the last commit that is more than a day old; all tests run if there is none.
BASE ?= $(shell git rev-list -1 --before='1 day ago' HEAD)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup libraries demo lint style types format bench docs site clean
.PHONY: test tested test-all test-touched ready interpreted compiled other-rounding opinfo

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: .venv/.ready  ## make .venv with everything in it, and compile the C++ (PYTHON=... picks the interpreter)
	@$(BIN)/opmux build || true

# torch is installed first and pinned: together with the other packages, pip may choose a build with all of CUDA.
.venv/.torch: constraints.txt
	@$(PYTHON) $(MODERN) 2>/dev/null || { \
	  echo "opmux needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>/dev/null || echo not there)."; \
	  echo "Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@if $(BIN)/python $(MODERN) 2>/dev/null && $(PIP) --version >/dev/null 2>&1; then \
	  echo "[1/3] .venv is there"; \
	else \
	  echo "[1/3] making .venv (seconds)"; \
	  $(PYTHON) -m venv --clear .venv || $(PYTHON) -m virtualenv --clear .venv || { \
	    echo "Neither venv nor virtualenv works with $(PYTHON). On Debian and Ubuntu: apt install python3-venv"; exit 1; }; \
	fi
	@echo "[2/3] installing $(TORCH) (one to five minutes the first time)"
	@$(INSTALL) $(TORCH) setuptools pip
	@touch $@

.venv/.ready: .venv/.torch pyproject.toml
	@echo "[3/3] installing opmux, the tools for tests and docs, and Transformer Engine's Python layer (about a minute)"
	@$(INSTALL) --no-build-isolation -e ".[test,te,docs]"
	@touch $@
	@echo "ready"

# Compiles the same libraries as `opmux build`. It needs only torch, so it runs while pip installs the other packages.
libraries: .venv/.torch
	@$(RUN) compileall -q -j 2 src
	@PYTHONPATH=src:tests/shared $(BIN)/python tests/shared/libraries.py

demo: .venv/.ready  ## set everything up and run the demo
	@$(BIN)/opmux demo

lint: style types  ## ruff and basedpyright

style: .venv/.ready
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: .venv/.ready
	$(RUN) basedpyright

format: .venv/.ready  ## let ruff fix and format
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# The type checker has one thread, so it runs in parallel with the first tests.
ready:
	@$(MAKE) --no-print-directory -j 2 setup libraries
	@$(MAKE) --no-print-directory style

test: ready  ## lint, types and a fixed set of tests: 10 minutes on two cores
	@$(MAKE) --no-print-directory -j 2 types interpreted
	@$(MAKE) --no-print-directory compiled

test-all: test  ## the same, then every other test, and another processor's rounding: an hour
	@$(MAKE) --no-print-directory interpreted compiled SELECT='--slow --rest'
	@$(MAKE) --no-print-directory other-rounding

tested: test  ## make test, then a row for the versions of .venv in docs/installing.md
	$(BIN)/python tools/tested.py "make test"

# After `make test`, REST=--rest skips the files of which it has run all tests.
test-touched: ready  ## every test of what changed since BASE=<commit>; by default since yesterday
	@$(MAKE) --no-print-directory interpreted compiled SELECT='--slow $(REST) --touched "$(BASE)"'

interpreted:
	$(PYTEST) $(BY_FILE) $(SELECT)

compiled:
	$(PYTEST) --dist worksteal --triton compile tests/kernels $(SELECT)

# ATen without vector instructions, and sums split over two threads: as different as another processor's results.
other-rounding:
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(PYTEST) $(BY_FILE) tests/core tests/ops tests/faces tests/backends tests/kernels

opinfo: .venv/.ready  ## every sample of PyTorch's OpInfo through our interpreted kernels: hours
	PYTHONPATH=src TRITON_INTERPRET=1 $(BIN)/python tests/faces/opinfo.py --processes $(JOBS) --seconds 36000 \
	  --unit-seconds 1800 --json opinfo.json --dtypes float32 bfloat16 float16 float64 int64 int32 bool complex64

bench: .venv/.ready  ## measure the cost of a call through the dispatcher
	$(BIN)/python benchmarks/dispatch.py

docs: .venv/.ready  ## write the generated pages of docs/, the charts and the notebooks
	PYTHONPATH=src $(BIN)/python tools/docs.py
	$(BIN)/python tools/notebooks.py
	$(BIN)/python benchmarks/chart.py

site: docs  ## build the documentation as web pages in site/
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

clean:  ## remove all build outputs except .venv
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

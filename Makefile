# Everything a person or a machine runs here. Each target makes the virtual environment it needs, once.
#   make demo PYTHON=python3.12        another interpreter
#   make test PYTEST_ARGS="-k tiresias" some of the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := demo-out
PYTEST_ARGS ?=
# Byte code is kept whatever the environment says: tests start hundreds of processes, and each would compile the sources.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-simulate quick test test-engines check format format-check lint types imports doctest chaos bench figures gauges gpu docs docs-serve build clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.live ## four trainings on a cluster of CPU slots, alone and interleaved, with a report (3 minutes)
	@$(BIN)/plait demo --out $(DEMO)

demo-simulate: $(VENV)/.sim ## simulate what order, turns, sizes by goodput and guests are worth, write a report
	@$(BIN)/plait demo --simulate --out $(DEMO)

# Two workers more than there are cores: tests of processes wait for a third of their time, and for each other's kernels.
test: $(VENV)/.dev ## the test suite
	$(BIN)/python -m pytest -m 'not engines' $(PYTEST_ARGS) \
		--dist loadfile -n $$($(BIN)/python -c 'import os; print(min(8, (os.cpu_count() or 1) + 2))')

QUICK := $(addprefix tests/unit/,core control grouping placement sharing test_structure.py)
quick: format-check lint types ## format, lint, types, and unit tests that start no processes (a minute)
	@$(BIN)/python -m pytest -q -m 'not engines' -n 2 $(QUICK)

# One at a time: each starts a cluster of its own, and they measure how soon things happen.
test-engines: $(VENV)/.engines ## ... of whole clusters, of processes and on Ray, Slurm and PostgreSQL (half an hour)
	@tests/live/install-engines
	$(BIN)/python -m pytest -m engines $(PYTEST_ARGS)

check: format-check lint types imports doctest docs test ## everything: format, lint, types, layers, doctests, docs, tests

format: $(VENV)/.dev ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

# Adapters need the libraries that they adapt.
doctest: $(VENV)/.dev
	$(BIN)/python -m pytest --doctest-modules --doctest-ignore-import-errors \
		src/plait papers/src/plait_papers

chaos: $(VENV)/.dev ## 30 jobs and 50 faults on a live cluster, then with guests (20 minutes); CHAOS_SEED=n another plan
	PLAIT_CHAOS=1 $(BIN)/python -m pytest -s tests/live/test_chaos.py -k for_minutes

bench: $(VENV)/.dev ## speed, as ratios to the last ones, into benchmarks/README.md (half an hour; BENCH_ARGS=--quick)
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

figures: $(VENV)/.dev ## renew the measured figures of the pages (hours; PAGE=README.md one page, LIST=1 only the commands)
	$(BIN)/python benchmarks/figures.py $(if $(LIST),--list) $(PAGE)

gauges: $(VENV)/.dev ## size and plainness of the source (CONTRIBUTING.md has the limits)
	@$(BIN)/python tests/gauges.py

# The machine's own python3, where PyTorch with CUDA usually is; another: make gpu PYTHON=...
gpu: ## measure what plait does on a real GPU, into gpu.json and gpu.md (10 minutes; MINUTES=5 leaves rows out)
	PYTHONPATH=src $(PYTHON) benchmarks/bench_gpu.py --minutes $(or $(MINUTES),10)

docs: $(VENV)/.docs ## the documentation as a site in site/
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.docs ## the documentation on http://127.0.0.1:8000, rebuilt as you write
	$(BIN)/mkdocs serve

build: $(VENV)/.dev ## wheel and source distribution in dist/
	$(BIN)/python -m build

clean: ## remove what the targets made, except the virtual environment
	rm -rf $(DEMO) figures-out site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find src papers tests benchmarks examples docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## ... and the virtual environment too
	rm -rf $(VENV)

# -- the virtual environment -----------------------------------------------------------------------------
# A stamp for each set of extras: made again when pyproject.toml changes, otherwise nothing happens.

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
		echo "There is no $(PYTHON) here. On Debian and Ubuntu: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "plait needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.sim: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[sim]'
	@touch $@

$(VENV)/.live: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[live,torch]' 'torch==2.13.0' 'gymnasium>=1.0'
	@touch $@ $(VENV)/.sim

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.sim $(VENV)/.live

# Where Ray cannot be had, its tests are skipped and say so.
$(VENV)/.engines: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]' || \
		echo "Ray could not be installed; its tests are skipped" >&2
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

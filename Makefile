# Everything runs in .venv, which is made on first use and again when its inputs change.
PYTHON ?= python3
JOBS ?= 2
# More options for pip, such as an index that has CPU builds of torch.
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.demo
DOCS_STAMP := $(VENV)/.docs
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n $(JOBS)
# Benchmarks write out/; PUBLISH=--publish makes them rewrite results/, which the documents quote.
PUBLISH ?=
BENCHMARKS := $(filter-out benchmarks/gat_layer.py benchmarks/plain_gcn.py benchmarks/publishing.py benchmarks/rmat.py benchmarks/scale_tasks.py benchmarks/turns.py,$(sort $(wildcard benchmarks/*.py)))
# What the oldest versions are tested with: planning, draws, graphs in memory, on disk and in a database.
OLDEST := tests/test_draws.py tests/test_bad_input.py tests/graph tests/diagnostics/test_units.py tests/experiments/sweep/test_grids.py

.PHONY: help install demo test test-oldest lint check docs notebooks dist bench benchmarks format clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## make .venv with the tested versions

# torch goes first, so that nothing else decides which build of it comes. PyPI's for Linux brings
# gigabytes of CUDA packages; PIP_FLAGS can name an index of CPU builds.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e '.[dev]'
	@touch $@

# What the demonstration needs, which is little beside what the tests need.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e '.[plot]' scipy
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) ## initialise a GCN with every method and compare (offline, under a minute)
	$(BIN)/virgo demo

test: $(STAMP) ## quick tests and doctests
	$(PYTEST) -m "not slow"

test-oldest: ## quick tests of the core with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -r constraints-oldest.txt
	PYTHONPATH=src .venv-oldest/bin/python -m pytest -n $(JOBS) -m "not slow" $(OLDEST)

lint: $(STAMP) ## format, lint, import arrows and strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

check: lint ## lint, then all tests, slow ones, doctests and docs examples included
	$(PYTEST)

# What the site and a release need, on top of what is there.
$(DOCS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e '.[docs,release]'
	@touch $@

docs: $(DOCS_STAMP) ## the site, into out/site; a warning or a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

notebooks: $(DOCS_STAMP) ## run the tutorials of docs/tutorials and keep their outputs (minutes)
	$(BIN)/python docs/site/notebooks.py

dist: $(DOCS_STAMP) ## the wheel and the source archive, into dist/, and whether PyPI would take them
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

bench: $(STAMP) ## large graphs: benchmarks.json, the pictures and tables of docs/benchmarks.md
	$(BIN)/python benchmarks/scale.py $(PUBLISH)
	$(BIN)/python docs/refresh.py

benchmarks: $(STAMP) ## every benchmark in turn (hours)
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script" $(PUBLISH); done

format: $(STAMP) ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) .venv-oldest build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

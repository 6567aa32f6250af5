PYTHON ?= python3
BIN := .venv/bin
# Every worker collects all tests, which takes 20 s of a processor. Files run in their
# order: doctests of src come last, each file of them short, so that no worker is left
# alone with a long file. By default those with the fewest tests come last.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Programs of tests start interpreters, which would compile every import again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup newest-jax data quick lint check test coverage nightly docs screenshots bench \
	experiments build release-check clean

setup: .venv/.ready

# The index that has PyTorch; empty for the index of pip's settings. On Linux the ordinary
# package index has the CUDA build, of several gigabytes; PyTorch's index has a CPU build.
TORCH_INDEX ?=

# PyTorch by pip, from an index of its own if TORCH_INDEX is set; without dependencies
# then, since that index lacks their pinned versions. The rest by uv, in a fifth of pip's
# time.
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip uv -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt \
		$(if $(TORCH_INDEX),--no-deps --index-url "$(TORCH_INDEX)") torch
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt \
		-e '.[dev,docs,partition,benchmarks]'
	touch .venv/.ready

# JAX's newest release that pyproject.toml allows, whatever constraints.txt says; `make
# test` then runs with it, and `touch pyproject.toml && make setup` goes back.
newest-jax: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python --upgrade-package jax \
		--upgrade-package jaxlib -e .
	$(BIN)/python -c 'import jax; print("JAX", jax.__version__)'

data: setup
	$(BIN)/python -m benchmarks.fetch_data

# Budget 2 minutes on 2 cores (tests/tier_costs.py): no process, no server, no build of the site.
quick: setup
	$(PYTEST) -m quick

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What every change must pass. Tests build the documentation, strictly.
check: lint test

test: setup
	$(PYTEST) -m "not nightly"

# Lines that the tests of `make check` run, in their own processes.
coverage: setup
	$(PYTEST) -m "not nightly" --cov=fedbilevel --cov-report=term:skip-covered

# Everything at full size, for hours when nobody waits, and the types of another system.
nightly: lint data
	$(BIN)/python -m benchmarks.fetch_data all
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(PYTEST)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Needs Chromium. DIRECTORY=... receives the pictures.
DIRECTORY ?= build/screenshots

screenshots: setup
	$(BIN)/python -m tools.screenshots $(DIRECTORY)

bench: setup
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.transforms
	$(BIN)/python -m benchmarks.research_loop
	$(BIN)/python -m benchmarks.torch_costs
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.sharded
	$(BIN)/python -m benchmarks.checkpointing
	$(BIN)/python -m benchmarks.progress
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.federation
	$(BIN)/python -m benchmarks.secure_sums

experiments: data
	$(BIN)/python -m benchmarks.cleaning_baselines
	$(BIN)/python -m benchmarks.first_try
	$(BIN)/python -m benchmarks.heterogeneity
	$(BIN)/python -m benchmarks.speedup
	$(BIN)/python -m benchmarks.complexity
	$(BIN)/python -m benchmarks.tasks
	$(BIN)/python -m benchmarks.traffic
	$(BIN)/python -m benchmarks.torch_tasks

# Files of an older version in dist/ would be published as well.
build: setup
	rm -rf dist
	$(BIN)/python -m build

# TAG=v0.1.0 must be the version of pyproject.toml.
release-check:
	$(PYTHON) -m tools.release_check

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache

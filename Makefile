PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup data check test docs bench experiments build clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs,partition,benchmarks]'
	touch .venv/.ready

data: setup
	$(BIN)/python -m benchmarks.fetch_data

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest -n 3 --dist loadfile

test: setup
	$(BIN)/pytest -n 3 --dist loadfile

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.research_loop
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.sharded
	$(BIN)/python -m benchmarks.checkpointing
	$(BIN)/python -m benchmarks.progress
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.federation

experiments: data
	$(BIN)/python -m benchmarks.heterogeneity
	$(BIN)/python -m benchmarks.speedup
	$(BIN)/python -m benchmarks.complexity
	$(BIN)/python -m benchmarks.tasks

build: setup
	$(BIN)/python -m build

clean:
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache

# Every target sets up what it needs; PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST_ARGS ?=

.PHONY: setup demo test check bench dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo,test,check,docs,dist]'
	touch $(STAMP)

demo: setup
	$(BIN)/roster demo

test: setup
	$(BIN)/pytest $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

# The wheel and the source archive, in dist/.
dist: setup
	rm -rf build dist
	$(BIN)/python -m build --quiet --outdir dist .

clean:
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Every target sets up what it needs; PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OLDEST := .venv-oldest
PYTEST_ARGS ?=

.PHONY: setup demo test test-spark-oldest check bench docs dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo,test,check,docs,dist]'
	touch $(STAMP)

demo: setup
	$(BIN)/roster demo

test: setup
	$(BIN)/pytest $(PYTEST_ARGS)

# Part of the tests of roster.spark on the oldest PySpark that is supported, in an environment of its own.
test-spark-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/pytest $(PYTEST_ARGS) tests/spark/test_pipeline.py tests/spark/test_options.py \
		tests/spark/test_mapped.py tests/spark/test_hadoop_storage.py

$(OLDEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -v -E '^(pyspark|py4j)==' constraints.txt >$(OLDEST)/constraints.txt
	$(OLDEST)/bin/pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[spark,test]' 'pyspark==4.0.*'
	touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

# The documentation, in site/; a warning is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel and the source archive, in dist/.
dist: setup
	rm -rf build dist
	$(BIN)/python -m build --quiet --outdir dist .

clean:
	rm -rf $(VENV) $(OLDEST) build dist site .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Every target sets up what it needs; PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OLDEST := .venv-oldest
CLUSTER := .venv-cluster
PORT ?= 7077
READER := .venv-table-reader
PYTEST_ARGS ?=
# What `.ci/run` has run already.
WITHOUT ?=
SEEDS ?= 1000
# Each process of the tests would compile them and Roster again.
export PYTHONDONTWRITEBYTECODE :=
# Leaves out what tests/conftest.py marks; neighbouring tests share a process and its fixtures.
UNIT = HYPOTHESIS_PROFILE=quick $(BIN)/pytest -q --numprocesses auto --dist worksteal \
	-m "not real and not spark and not process"

.PHONY: help setup demo cluster unit test gate test-spark test-without-spark test-spark-oldest test-table-readers simulate coverage check bench docs recording pictures dist clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## a virtual environment with everything, exact versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo,test,check,docs,dist]'
	touch $(STAMP)

demo: setup  ## two applications share a topic through failures, on this machine
	$(BIN)/roster demo

cluster: dist  ## a Spark master (PORT, 7077) and two workers on this machine, with the wheel; Ctrl-C ends them
	$(PYTHON) -m venv --clear $(CLUSTER)
	$(CLUSTER)/bin/pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[spark,state]"
	$(CLUSTER)/bin/python tests/spark/apps/standalone.py --port $(PORT)

unit: setup  ## tests without JVM, Spark and other processes, few examples, parallel: a minute
	$(UNIT) $(PYTEST_ARGS)

test: setup  ## all tests but those of the gate: with Spark, with Apache Kafka and the others side by side
	$(BIN)/python tests/side_by_side.py 'spark and not gate=2' 'real and not (spark or gate)' 'not (spark or real or gate)=2' \
		-- $(PYTEST_ARGS)

gate: setup  ## all tests, side by side
	$(BIN)/python tests/side_by_side.py spark=3 'real and not spark' 'not (spark or real)$(WITHOUT)=2' -- $(PYTEST_ARGS)

test-spark: setup  ## tests that need a JVM with Spark
	$(BIN)/pytest -m spark $(PYTEST_ARGS)

test-without-spark: setup  ## all other tests
	$(BIN)/pytest -m "not spark" $(PYTEST_ARGS)

test-spark-oldest: $(OLDEST)/.installed  ## tests of roster.spark on PySpark 4.0
	$(OLDEST)/bin/pytest $(PYTEST_ARGS) tests/spark/test_pipeline.py tests/spark/test_options.py \
		tests/spark/tasks/test_arrow_function.py tests/spark/jobs/test_query_events.py tests/spark/state/test_aggregates.py

$(OLDEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -v -E '^(pyspark|py4j)==' constraints.txt >$(OLDEST)/constraints.txt
	$(OLDEST)/bin/pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[spark,test]' 'pyspark==4.0.*'
	touch $@

test-table-readers: setup $(READER)/.installed  ## Spark 4.1 as a reader of Delta and Iceberg tables while Roster writes: minutes
	ROSTER_TABLE_READER=$(CURDIR)/$(READER) $(BIN)/pytest $(PYTEST_ARGS) tests/spark/sinks/test_tables_read_by_spark.py

$(READER)/.installed: tests/spark/sinks/table_reader/pom.xml
	$(PYTHON) -m venv $(READER)
	$(READER)/bin/pip install --quiet 'pyspark==4.1.*'
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(READER)/jars -DincludeScope=runtime
	touch $@

simulate: setup  ## the group protocol under faults in virtual time, SEEDS runs (1000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

coverage: setup  ## `make unit` with the lines and branches it leaves out, also in htmlcov/
	$(UNIT) --cov --cov-report=term:skip-covered --cov-report=html $(PYTEST_ARGS)

check: setup  ## style, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## benchmarks
	$(BIN)/python -m benchmarks

docs: setup  ## the documentation, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

recording: setup  ## docs/groups-watch.svg, the recording of `roster groups watch`, from a real run: half a minute
	$(BIN)/python docs/recording.py docs/groups-watch.svg

pictures: setup  ## docs/page-*.webp, the page of `roster console` in Chromium, from a real run: two minutes
	$(BIN)/python -m tests.page.pictures docs

dist: setup  ## the wheel and the source archive, in dist/
	rm -rf build dist
	$(BIN)/python -m build --quiet --outdir dist .

clean:  ## remove all that the targets above made
	rm -rf $(VENV) $(OLDEST) $(CLUSTER) build dist site htmlcov .coverage* .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

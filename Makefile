# Every target sets up what it needs; PYTHON may name another interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready-
OLDEST := .venv-oldest
STATEFUL := tests/spark/dataframes/test_stateful_queries.py::test_a_program_gives_the_rows_and_types_of_a_batch
CLUSTER := .venv-cluster
PORT ?= 7077
READER := .venv-table-reader
PYTEST_ARGS ?=
SEEDS ?= 1000
MINUTES ?= 10
SINCE ?=
COMMA := ,
# Each process of the tests would compile them and Roster again.
export PYTHONDONTWRITEBYTECODE :=
# tests/scheduling.py deals the files; tests/conftest.py marks what the expressions leave out.
PYTEST = $(BIN)/pytest -q --numprocesses auto --dist loadscope

# An environment in $(1) with what $(3) names, in the versions of $(2). uv is several times as fast as pip, where it can
# be had; the versions are the same.
define install
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@test -x $(1)/bin/uv || $(1)/bin/pip install --quiet --constraint constraints.txt uv || true
	@echo "installing $(3) in $(1): a minute or two, once"
	@{ test -x $(1)/bin/uv && $(1)/bin/uv pip install --quiet --python $(1)/bin/python --constraint $(2) $(3); } \
		|| $(1)/bin/pip install --quiet --constraint $(2) $(3)
endef

.PHONY: help setup demo cluster unit test gate explore test-spark-oldest test-table-readers simulate coverage check bench docs recording pictures dist clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)demo,test,check,docs,dist  ## a virtual environment with everything, exact versions

$(READY)%: pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt,--editable '.[$*]')
	@touch '$@'

demo: $(READY)demo  ## two applications share a topic through failures, on this machine
	$(BIN)/roster demo

cluster: dist  ## a Spark master (PORT, 7077) and two workers on this machine, with the wheel; Ctrl-C ends them
	rm -rf $(CLUSTER)
	$(call install,$(CLUSTER),constraints.txt,"$$(echo dist/*.whl)[spark$(COMMA)state]")
	$(CLUSTER)/bin/python tests/spark/apps/standalone.py --port $(PORT)

unit: $(READY)demo,test  ## tests without JVM, Spark and other processes, few examples: about two minutes
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not real and not spark and not process and not gate" $(PYTEST_ARGS)

test: $(READY)demo,test  ## the tests, few examples, one of each kind with Spark and real parts: five to ten minutes; SINCE=main: what changed
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not gate" $(if $(SINCE),--since $(SINCE)) $(PYTEST_ARGS)

gate: setup  ## all tests, all examples
	$(PYTEST) $(PYTEST_ARGS)

explore: $(READY)demo,test  ## new examples, seeds of the simulator and random programs, for MINUTES (10)
	$(BIN)/python -m tests.explore $(MINUTES)

test-spark-oldest: $(OLDEST)/.ready  ## tests of roster.spark on PySpark 4.0
	$(OLDEST)/bin/pytest $(PYTEST_ARGS) tests/spark/test_pipeline.py tests/pipeline/test_options.py \
		tests/pipeline/tasks/test_arrow_function.py tests/spark/jobs/test_query_events.py tests/stateful/test_aggregates.py \
		tests/spark/dataframes/test_plans.py tests/spark/dataframes/test_arrow_path.py \
		tests/spark/dataframes/test_sparks_methods.py tests/spark/dataframes/test_query_of_a_pipeline.py \
		'$(STATEFUL)[within]' '$(STATEFUL)[sessions]' '$(STATEFUL)[full joined]' '$(STATEFUL)[code in pandas]'

$(OLDEST)/.ready: pyproject.toml constraints.txt
	mkdir -p $(OLDEST)
	grep -v -E '^(pyspark|py4j)==' constraints.txt >$(OLDEST)/constraints.txt
	$(call install,$(OLDEST),$(OLDEST)/constraints.txt,--editable '.[spark$(COMMA)test]' 'pyspark==4.0.*')
	@touch $@

test-table-readers: $(READY)demo,test $(READER)/.ready  ## Spark 4.1 as a reader of Delta and Iceberg tables while Roster writes: minutes
	ROSTER_TABLE_READER=$(CURDIR)/$(READER) $(BIN)/pytest $(PYTEST_ARGS) tests/sinks/test_tables_read_by_spark.py

$(READER)/.ready: tests/sinks/table_reader/pom.xml
	$(call install,$(READER),/dev/null,'pyspark==4.1.*')
	mvn --batch-mode --quiet --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(READER)/jars -DincludeScope=runtime
	@touch $@

simulate: $(READY)demo,test  ## the group protocol under faults in virtual time, SEEDS runs (1000)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

coverage: $(READY)demo,test  ## `make unit` with the lines and branches it leaves out, also in htmlcov/
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m "not real and not spark and not process and not gate" \
		--cov --cov-report=term:skip-covered --cov-report=html $(PYTEST_ARGS)

check: $(READY)demo,test,check  ## style, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)demo,test  ## benchmarks
	$(BIN)/python -m benchmarks

docs: $(READY)demo,docs  ## the documentation, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

recording: $(READY)demo  ## docs/groups-watch.svg, the recording of `roster groups watch`, from a real run: half a minute
	$(BIN)/python docs/recording.py docs/groups-watch.svg

pictures: $(READY)demo,test  ## docs/page-*.webp, the page of `roster console` in Chromium, from a real run: two minutes
	$(BIN)/python -m tests.page.pictures docs

dist: $(READY)dist  ## the wheel and the source archive, in dist/
	rm -rf build dist
	$(BIN)/python -m build --quiet --outdir dist .

clean:  ## remove all that the targets above made
	rm -rf $(VENV) $(OLDEST) $(CLUSTER) build dist site htmlcov .coverage* .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

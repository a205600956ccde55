# Set-up and every check of the project. `make` alone prints what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LISTEN ?= 127.0.0.1:9092
DATA ?= data
PICTURE ?= build/demo.svg
MINUTES ?= 60
PYTHONS ?= python3.12 python3.13 python3.14
NODES_TESTS := $(addprefix compat_tests/test_,transactions.py offsets_in_transactions.py admin.py restart.py groups.py transaction_tools.py)

# Bytecode is kept: `check` makes that of the tests, which each process of theirs would make again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install serve test check types rules unit compat nodes cluster demo ledger sessionize audit backfill bench isolation trace soak soakdisk fuzz reference containers pythons docs clean

help: ## Show the targets.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(INSTALLED) ## Create .venv with every extra.

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "magnetar needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing into $(VENV), with every extra, PySpark among them: once, in some minutes."
	$(PYTHON) -m venv $(VENV)
	@# Twice quiet: the pip of Debian 12 warns of PySpark, which installs all the same.
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[cluster,console,containers,otel,security,spark,telemetry,testing,examples,docs,dev]'
	@# On all cores; pip would on one. A library may carry a file for another Python, which does not compile.
	-@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	$(BIN)/python -m compileall -q -j 0 wire coordinator logstore magnetar
	@touch $@

serve: install ## Start a broker on LISTEN (127.0.0.1:9092), durable data in DATA (./data).
	$(BIN)/magnetar serve --listen $(LISTEN) --data-dir $(DATA)

test: check unit compat nodes cluster ## Everything that CI runs.

check: install ## Lint, security of the code and of its libraries, format, types, layers, sizes.
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types rules

types: install
	$(BIN)/mypy

rules: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tools.dependency_audit
	$(BIN)/pytest -q tests/test_tidy.py
	$(BIN)/pytest -qq --collect-only tests compat_tests > /dev/null || $(BIN)/pytest -qq --collect-only tests compat_tests

unit: install reference ## The tests of the packages, but for the rules of `check`.
	$(BIN)/pytest -q -n 3 --durations 15 --ignore tests/test_tidy.py tests

compat: install reference ## Real clients against magnetar and against Apache Kafka.
	$(BIN)/pytest -q -n 5 --dist loadscope -p no:randomly --durations 25 compat_tests

nodes: install ## Of these, what nodes can affect most, against a magnetar of three nodes.
	MAGNETAR_WORKERS=3 $(BIN)/pytest -q -n 3 --dist loadscope -p no:randomly $(NODES_TESTS)

reference: install ## Fetch the jars of Apache Kafka 4.4.0, the reference, of the client and Connect of 4.3.1, and of Spark's connector, through Maven.
	$(BIN)/python -m tools.reference_kafka fetch
	$(BIN)/magnetar spark-jars "$${XDG_CACHE_HOME:-$$HOME/.cache}/magnetar/spark-4.0.0"

cluster: install ## The same tests against a cluster of three nodes over PostgreSQL and a bucket.
	MAGNETAR_WORKERS=3 MAGNETAR_STORAGE=postgresql+s3 $(BIN)/pytest -q -n 3 --dist loadscope -p no:randomly $(NODES_TESTS)

demo: install ## Count words exactly once while workers and the broker are killed; draw PICTURE (under a minute).
	$(BIN)/python -m compat_tests.pipeline.demo --picture $(PICTURE)

ledger: install ## Spark keeps balances exactly once while writers, tasks, job and broker are killed.
	$(BIN)/python -m spark_examples.ledger

sessionize: install ## Spark makes sessions of real events, to Parquet and to a topic.
	$(BIN)/python -m spark_examples.sessionize

audit: install ## Spark proves over some millions of records that each is there exactly once.
	$(BIN)/python -m spark_examples.audit

backfill: install ## Spark writes a DataFrame to a topic, visible in one moment.
	$(BIN)/python -m spark_examples.backfill

bench: install reference ## Measure magnetar beside Apache Kafka in one run.
	$(BIN)/python -m benchmarks.bench

isolation: install ## Measure how long one client waits beside the worst that others do; write docs/isolation.md.
	$(BIN)/python -m benchmarks.isolation

trace: install ## Print the way of a request through files and calls, measured: API="EndTxn v4"; without API, a table.
	$(BIN)/python -m tools.trace $(API)

soak: install reference ## Crash properties and the pipeline 20 times, all compat tests over three nodes, of a machine and of a cluster, transactions for 10 minutes, over nodes for 20, groups for 5, topics for 10, Spark's sink 200 times, its examples, 100 000 histories of a group. Long.
	$(BIN)/python -m tools.soak

soakdisk: install reference ## Every client at once for half an hour, as root, on a disk of 2 GB that fills twice.
	$(BIN)/python -m tools.soak_disk

fuzz: install ## Feed random requests, batches, files, settings and logins to what reads them, for MINUTES (60).
	$(BIN)/python -m tools.fuzz --minutes $(MINUTES)

containers: install reference ## Build the container image with an engine of its own, and try it and MagnetarContainer. Needs root, docker.io, mmdebstrap.
	$(BIN)/python -m tools.packages.containers

pythons: install ## Try the wheel on other Pythons: PYTHONS="python3.12 python3.14", and TESTS=tests there.
	$(BIN)/python -m tools.packages.try_pythons $(PYTHONS) $(if $(TESTS),--tests $(TESTS))

docs: install ## Build the documentation's site into build/site; warnings are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file tools/site/mkdocs.yml

clean: ## Remove what the targets above made (data stays).
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
